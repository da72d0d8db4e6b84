// Auto-recovery of the cluster: whether it works, what is endangered, under repair and lost, and which bookies are away.

import { get } from "./api.js";
import { carryOut, confirm } from "./dialogs.js";
import { chip, facts, h, panel, replace, table } from "./dom.js";
import { ago, count, moment, span } from "./format.js";
import { pager } from "./pager.js";
import { ledgerHref, lossText, repairChip } from "./words.js";

const POLL_MS = 3000;

export function autoRecoveryView(root, context) {
  const shown = h("div");
  const done = h("p", { class: "note", role: "status" });
  root.append(h("h1", { class: "hidden" }, "Auto-recovery"), shown);
  const refresh = async () => {
    try {
      const seen = await get("/autorecovery", { start_after: context.query.get("after") }, context.signal);
      replace(shown, seen.supported ? everything(seen, context.query, act, done) : h("p", { class: "empty" }, `No auto-recovery in this cluster: ${seen.reason}.`));
    } catch (error) {
      context.failed(shown, error);
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

function repairsPanel({ repairs, repairCount }) {
  const rows = repairs.map(({ ledgerId, holder }) => h("tr", null, ledgerCell(ledgerId), h("td", null, holder || "does not tell")));
  const aside = repairCount > repairs.length ? `the first ${repairs.length} of ${count(repairCount)}` : count(repairCount);
  return panel("Being repaired", aside, table("Being repaired", ["Ledger", "By"], rows, "Nobody repairs a ledger now."));
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
      h("td", { class: "break" }, loss.lostBookies.join(", ") || "–"),
      h("td", { title: moment(loss.since) }, ago(loss.since)),
    ),
  );
  const aside = counts && counts.unrecoverable > losses.length ? `the first ${losses.length} of ${count(counts.unrecoverable)}` : null;
  return panel("Unrecoverable ledgers", aside, table("Unrecoverable ledgers", ["Ledger", { text: "Why", class: "wide" }, "Bookies that would help", "Found"], rows, counts ? "None." : "Known after the first count."));
}

function ledgerCell(ledgerId) {
  return h("th", { scope: "row", class: "mono" }, h("a", { href: ledgerHref(ledgerId), "data-key": `ledger ${ledgerId}` }, ledgerId));
}
