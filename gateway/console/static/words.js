// How states are called and coloured, and where ledgers are linked to.

import { chip, h } from "./dom.js";
import { ago, count, moment, span } from "./format.js";

const LEDGER_STATES = {
  OPEN: ["open", "info"],
  IN_RECOVERY: ["in recovery", "warn"],
  CLOSED: ["closed", "calm"],
  DAMAGED: ["damaged", "bad"],
};

export const STATES = Object.keys(LEDGER_STATES);

export function stateWord(state) {
  return LEDGER_STATES[state]?.[0] ?? state;
}

export function ledgerChip(state) {
  return chip(stateWord(state), LEDGER_STATES[state]?.[1]);
}

/** A bookie's state as one chip: what it is registered as, unless it does not answer. */
export function bookieChip(bookie) {
  if (bookie.state === "unavailable") return chip("not registered", "bad");
  if (bookie.answers === false) return chip("no answer", "bad", `registered as ${bookie.state}`);
  return chip(bookie.state, bookie.state === "writable" ? "good" : "warn");
}

/** Whether nothing can be read from a bookie now: `bookie` is what the cluster tells of it, if anything. */
export function isAway(bookie) {
  return !bookie || bookie.state === "unavailable" || bookie.answers === false;
}

/** What auto-recovery has to do with a bookie. */
export function recoveryChips({ missedSince, isDraining }) {
  return [
    missedSince !== null ? chip("missed", "warn", `auto-recovery noticed ${ago(missedSince)} that it is away`) : null,
    isDraining ? chip("draining", "info", "its ledgers move to other bookies") : null,
  ];
}

/** Since when a bookie is away, where that is known: auto-recovery notices at once, this server when somebody looks. */
export function awayFor({ state, missedSince, awaySince }) {
  const since = missedSince ?? awaySince;
  if (state !== "unavailable" || !since) return null;
  const by = missedSince ? "auto-recovery" : "this server, which looks while a console is open,";
  return h("span", { class: "muted since", title: `${by} noticed it ${moment(since)}` }, `for ${span((Date.now() - since) / 1000)}`);
}

/** What is wrong with a marked ledger, which may lack copies, have damaged ones or only lie at the wrong bookies; a damaged mark says nothing of it. */
export function repairChip({ missing, unrecoverable, damaged, corruptAt }) {
  if (unrecoverable) return chip("unrecoverable", "bad");
  if (damaged) return chip("mark damaged", "warn");
  if (corruptAt.length) return chip("corrupt copies", "bad", `a scrub found them at ${corruptAt.join(", ")}`);
  return missing.length ? chip("under-replicated", "warn") : chip("misplaced", "warn");
}

/** Why a ledger can't be repaired. */
export function lossText({ entries, firstEntries, endIsLost }) {
  const more = entries > firstEntries.length ? ", …" : "";
  const gone = entries ? `no copy is left of ${count(entries)} ${entries === 1 ? "entry" : "entries"}: ${firstEntries.join(", ")}${more}` : null;
  const end = endIsLost ? "nobody can tell where it ends" : null;
  return [gone, end].filter(Boolean).join("; ") || "its record does not tell";
}

/** What the bookies of a ledger that can't be repaired said; records of before do not tell. */
export function answersText(answers) {
  return answers.map(({ bookie, answer }) => `${bookie}: ${answer}`).join(", ");
}

const COPY = { ok: "good", differs: "bad", "bad digest": "bad", missing: "warn", refused: "warn", "no answer": "bad" };

export function copyChip(state) {
  return chip(state, COPY[state]);
}

export function digestChip(digest) {
  return digest === "ok" ? chip("ok", "good") : chip(digest === "bad" ? "bad digest" : "unreadable", "bad");
}

/** `/ledger/7`, with its scope where it has one. */
export function ledgerHref(ledgerId, scopeId) {
  if (/^[0-9a-f]{32}$/.test(ledgerId)) {
    const half = (digits) => BigInt.asIntN(64, BigInt(`0x${digits}`)).toString();
    return ledgerHref(half(ledgerId.slice(16)), half(ledgerId.slice(0, 16)));
  }
  return scopeId && scopeId !== "0" ? `#/ledger/${ledgerId}?scope=${scopeId}` : `#/ledger/${ledgerId}`;
}

/** A ledger's id, or with a scope its qualified name: a ledger of the same id without one is another. */
export function ledgerName({ ledgerId, ledgerScopeId }) {
  if (!ledgerScopeId || ledgerScopeId === "0") return ledgerId;
  const half = (number) => BigInt.asUintN(64, BigInt(number)).toString(16).padStart(16, "0");
  return half(ledgerScopeId) + half(ledgerId);
}

export function customMetadata(pairs, total) {
  return [
    pairs.map(({ key, value, encoding, size }) =>
      h(
        "span",
        { class: "pair", title: size > value.length ? `${size} bytes` : null },
        h("b", null, key),
        encoding === "hex" ? h("code", null, `0x${value}`) : value,
      ),
    ),
    total > pairs.length ? h("span", { class: "muted" }, `${total - pairs.length} more`) : null,
  ];
}

/** What a view says that this server has nothing for; other servers that have it are named. */
export function notHere(what, cluster) {
  const others = (cluster?.bookies ?? []).filter((bookie) => bookie.console && bookie.state !== "unavailable");
  return h(
    "div",
    { class: "empty" },
    h("p", null, `${what}: not on this server, which is a gateway without a bookie.`),
    others.length
      ? h("p", null, "Bookies that show it: ", others.map((bookie) => h("a", { class: "gap", href: bookie.console + location.hash, rel: "noopener" }, bookie.id)))
      : null,
  );
}
