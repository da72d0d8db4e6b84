// Auto-recovery of the cluster: whether it works, what is endangered, under repair and lost, and which bookies are away.

import { get } from "./api.js";
import { carryOut, confirm } from "./dialogs.js";
import { bar, chip, facts, h, panel, replace, table } from "./dom.js";
import { ago, bytes, count, moment, short, span } from "./format.js";
import { pager } from "./pager.js";
import { Turns } from "./turns.js";
import { answersText, ledgerHref, lossText, repairChip } from "./words.js";

const POLL_MS = 3000;

export function autoRecoveryView(root, context) {
  const shown = h("div");
  const done = h("p", { class: "note", role: "status" });
  root.append(h("h1", { class: "hidden" }, "Auto-recovery"), shown);
  const turns = new Turns();
  const refresh = async () => {
    const isLatest = turns.begin();
    try {
      const seen = await get("/autorecovery", { start_after: context.query.get("after") }, context.signal);
      if (isLatest()) replace(shown, seen.supported ? everything(seen, context.query, act, done) : h("p", { class: "empty" }, `No auto-recovery in this cluster: ${seen.reason}.`));
    } catch (error) {
      if (isLatest()) context.failed(shown, error);
    }
  };
  const act = async (path, query, text) => {
    if (!(await carryOut(context.cluster()?.server.changes, "PUT", `/autorecovery/${path}`, query))) return;
    done.textContent = text;
    await refresh();
  };
  context.every(POLL_MS, refresh);
}

function everything(seen, query, act, done) {
  return [
    h("div", { class: "columns" }, h("div", { class: "stacked" }, statePanel(seen, act, done), bookiesPanel(seen)), repairsPanel(seen)),
    seen.progress ? h("div", { class: "columns" }, progressPanel(seen.progress), lostPanel(seen.progress)) : null,
    lossesPanel(seen),
    marksPanel(seen, query),
  ];
}

function statePanel(seen, act, done) {
  const { counts } = seen;
  const counting = "counting…";
  return panel(
    "State",
    seen.enabled ? chip("enabled", "good") : chip("disabled", "warn"),
    facts([
      ["Auditor", seen.auditor ?? h("span", { class: "bad" }, "none")],
      ["A bookie counts as lost after", seen.delaySeconds === null ? "not set yet" : `${count(seen.delaySeconds)} s`],
      ["Marked ledgers", counts ? count(counts.marked) : counting],
      ["Oldest mark of one that lacks copies", counts ? h("span", { title: moment(counts.oldestMark) }, counts.oldestMark ? ago(counts.oldestMark) : "none") : counting],
      ["Unrecoverable ledgers", counts ? h("span", { class: counts.unrecoverable ? "bad" : "" }, count(counts.unrecoverable)) : counting],
      ["Ledgers with corrupt copies", counts ? h("span", { class: counts.corrupt ? "bad" : "" }, count(counts.corrupt)) : counting],
      counts ? ["Counted", `${span(counts.ageSeconds)} ago`] : null,
    ]),
    seen.obstacle ? h("p", { class: "problem" }, `Nothing is marked or repaired: ${seen.obstacle}.`) : null,
    h("div", { class: "buttons left" }, switchButton(seen, act), auditButton(act)),
    done,
  );
}

function switchButton({ enabled }, act) {
  const word = enabled ? "Disable" : "Enable";
  const text = enabled
    ? "Nothing is marked or repaired in the whole cluster until it is enabled again: ledgers that lose copies stay without them."
    : "The auditor looks for lost bookies, and their ledgers are copied again, in the whole cluster.";
  const change = async () => {
    if (await confirm(`${word} auto-recovery`, text, word)) await act("status", { enabled: !enabled }, `${word}d.`);
  };
  return h("button", { class: enabled ? "" : "primary", "data-key": "switch", onclick: change }, word);
}

function auditButton(act) {
  const text = "Every bookie that is not registered now counts as lost, however short it has been away, and its ledgers are marked for repair.";
  const audit = async () => {
    if (await confirm("Audit now", text, "Audit")) await act("trigger_audit", {}, "The auditor was told to look for lost bookies.");
  };
  return h("button", { "data-key": "audit", onclick: audit }, "Audit now");
}

/** What a class of marked ledgers is called, how it is coloured, and what it means. */
const DANGERS = {
  unrecoverable: ["unrecoverable", "bad", "entries have no copy left"],
  last_copy: ["last copy", "bad", "the worst entry has one copy left, or none"],
  below_ack_quorum: ["below ack quorum", "bad", "fewer copies are left than an acknowledgement took"],
  below_write_quorum: ["below write quorum", "warn", "fewer copies are left than there are to be"],
  moving: ["moving", "info", "all copies are there; they leave a bookie that is to be emptied"],
  misplaced: ["misplaced", "warn", "all copies are there, where the placement policy would not have them"],
  unknown: ["not read yet", "calm", "not read yet, deleted, or with damaged metadata"],
};

function progressPanel(progress) {
  const { left, oldest } = progress;
  const rows = progress.classes.map((each) => {
    const [word, kind, meaning] = DANGERS[each.class] ?? [each.class, "", ""];
    return h("tr", null, h("th", { scope: "row" }, chip(word, kind, meaning)), ...[count(each.ledgers), count(each.entries), bytes(each.bytes)].map((text) => h("td", { class: "number" }, text)));
  });
  return panel(
    "Endangered",
    "entries and bytes: at most so many",
    table("Endangered", ["Class", { text: "Ledgers", class: "number" }, { text: "Entries to copy", class: "number" }, { text: "Bytes", class: "number" }], rows, "Nothing is endangered."),
    facts([
      ["To be repaired", `${count(left.ledgers)} ${left.ledgers === 1 ? "ledger" : "ledgers"}, ${bytes(left.bytes)}`],
      ["Copied", `${bytes(progress.bytesASecond)}/s, ${short(progress.entriesASecond)} entries/s`],
      ["Repaired", progress.ledgersAMinute === null ? "no ledger yet" : `${short(progress.ledgersAMinute)} ledgers a minute`],
      ["Done in", progress.secondsLeft === null ? "not known yet" : `about ${span(progress.secondsLeft)}`],
      ["Oldest", oldest ? h("span", { title: moment(oldest.since) }, h("a", { href: ledgerHref(oldest.ledgerId) }, oldest.ledgerId), `, marked ${ago(oldest.since)}`) : "none"],
    ]),
  );
}

function lostPanel({ bookies }) {
  const rows = bookies.map(({ bookie, left, done, secondsLeft }) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, bookie),
      h("td", { class: "space" }, bar(done / (done + left), "", `${done} of ${done + left}`), h("span", null, `${count(done)} of ${count(done + left)}`)),
      h("td", null, secondsLeft === null ? "–" : span(secondsLeft)),
    ),
  );
  return panel("Bookies whose copies are made again", null, table("Bookies whose copies are made again", ["Bookie", { text: "Ledgers done", class: "wide" }, "Time left"], rows, "None."));
}

function repairsPanel({ repairs, repairCount }) {
  const rows = repairs.map((each) =>
    h("tr", null, ledgerCell(each.ledgerId), h("td", null, each.holder || "does not tell"), h("td", { class: "space" }, copied(each)), h("td", { title: moment(each.since) }, ago(each.since))),
  );
  const aside = repairCount > repairs.length ? `the first ${repairs.length} of ${count(repairCount)}` : count(repairCount);
  return panel("Being repaired", aside, table("Being repaired", ["Ledger", "By", { text: "Copied", class: "wide" }, "Since"], rows, "Nobody repairs a ledger now."));
}

/** How much of a ledger is copied; workers of BookKeeper do not tell. */
function copied({ entries, bytes: size, dueEntries }) {
  if (entries === undefined) return "–";
  const text = `${bytes(size)}, ${count(entries)} of ${count(Math.max(entries, dueEntries))} entries`;
  return [bar(dueEntries ? Math.min(1, entries / dueEntries) : 0, "", text), h("span", null, text)];
}

function bookiesPanel({ missed, draining }) {
  const row = ({ bookie, since }, word, kind) =>
    h("tr", null, h("th", { scope: "row" }, bookie), h("td", null, chip(word, kind)), h("td", { title: moment(since) }, ago(since)));
  const rows = [...missed.map((each) => row(each, "missed", "warn")), ...draining.map((each) => row(each, "draining", "info"))];
  return panel("Bookies that lose their ledgers", null, table("Bookies that lose their ledgers", ["Bookie", "State", "Since"], rows, "None is missed, and none is to be emptied."));
}

function marksPanel({ marks, next }, query) {
  const rows = marks.map((mark) =>
    h(
      "tr",
      null,
      ledgerCell(mark.ledgerId),
      h("td", null, repairChip(mark), mark.holder !== null ? chip("being repaired", "info", `by ${mark.holder}`) : null),
      h("td", null, mark.missing.join(", ")),
      h("td", { title: moment(mark.since) }, ago(mark.since)),
    ),
  );
  return panel(
    "Marked ledgers",
    null,
    table("Marked ledgers", ["Ledger", "State", { text: "Lacks copies at", class: "wide" }, "Marked"], rows, "No ledger is marked here."),
    pager("autorecovery", query, next, marks.length),
  );
}

function lossesPanel({ losses, counts }) {
  const rows = losses.map((loss) =>
    h(
      "tr",
      null,
      ledgerCell(loss.ledgerId),
      h("td", { class: "break" }, lossText(loss)),
      h("td", { class: "break" }, answersText(loss.answers) || loss.lostBookies.join(", ") || "–"),
      h("td", { title: moment(loss.since) }, ago(loss.since)),
    ),
  );
  const aside = counts && counts.unrecoverable > losses.length ? `the first ${losses.length} of ${count(counts.unrecoverable)}` : null;
  return panel("Unrecoverable ledgers", aside, table("Unrecoverable ledgers", ["Ledger", { text: "Why", class: "wide" }, { text: "Its bookies answered", class: "wide" }, "Found"], rows, counts ? "None." : "Known after the first count."));
}

function ledgerCell(ledgerId) {
  return h("th", { scope: "row", class: "mono" }, h("a", { href: ledgerHref(ledgerId), "data-key": `ledger ${ledgerId}` }, ledgerId));
}
