// Garbage collection and compaction of this bookie: what runs, what it freed, and how full of live data entry logs are.

import { get } from "./api.js";
import { carryOut, confirm } from "./dialogs.js";
import { bar, chip, facts, h, panel, replace, s, table } from "./dom.js";
import { ago, bytes, count, moment, span } from "./format.js";
import { Turns } from "./turns.js";
import { notHere } from "./words.js";

const POLL_MS = 2000;

export function collectionView(root, context) {
  root.append(h("h1", { class: "hidden" }, "Garbage collection"));
  const cluster = context.cluster();
  if (cluster && !cluster.server.features.includes("collection")) {
    root.append(notHere("Garbage collection", cluster));
    return;
  }
  const shown = h("div");
  root.append(shown);
  const turns = new Turns();
  const refresh = async () => {
    const isLatest = turns.begin();
    try {
      const seen = await get("/collection", {}, context.signal);
      if (isLatest()) replace(shown, h("div", { class: "columns" }, progress(seen, act), results(seen)), usage(seen), logs(seen));
    } catch (error) {
      if (isLatest()) context.failed(shown, error);
    }
  };
  const act = async (method, path, body) => {
    if (await carryOut(context.cluster()?.server.changes, method, path, {}, body)) await refresh();
  };
  context.every(POLL_MS, refresh);
}

function progress(seen, act) {
  const busy = seen.phase !== "idle";
  const kind = seen.compacting ? `${seen.compacting} compaction` : seen.phase;
  const part = seen.phaseTotal ? seen.phaseDone / seen.phaseTotal : 0;
  const run = async (body, text) => {
    if (await confirm("Collect garbage now", text, "Run")) await act("PUT", "/bookie/gc", body);
  };
  const now = () => run({}, "Ledgers that the metadata no longer has go, and entry logs that nobody needs; compaction runs if it is due.");
  const major = () => run({ forceMajor: true, forceMinor: false }, "As a run, and every entry log below the threshold of major compaction is written anew: much reading and writing.");
  return panel(
    "Now",
    busy ? chip("running", "info") : seen.asked ? chip("asked for", "info") : chip("idle", "calm"),
    h("p", { class: "phase" }, busy ? kind : "waiting for the next run"),
    bar(busy ? part : 0, "", seen.phaseTotal ? `${seen.phaseDone} of ${seen.phaseTotal}` : kind),
    h("p", { class: "note" }, busy && seen.phaseTotal ? `${count(seen.phaseDone)} of ${count(seen.phaseTotal)} entry logs` : `${seen.lastRun ? `last run ended ${ago(seen.lastRun)}` : "no run yet"}`),
    h(
      "div",
      { class: "buttons left" },
      h("button", { class: "primary", "data-key": "run", onclick: now }, "Run now"),
      h("button", { "data-key": "major", onclick: major }, "Run with major compaction"),
    ),
    table("Compaction", ["Compaction", { text: "Done", class: "number" }, "Last", "State", ""], [kindRow("minor", seen.minor, act), kindRow("major", seen.major, act)]),
  );
}

function kindRow(name, kind, act) {
  const word = kind.suspended ? "Resume" : "Suspend";
  const key = `${word.toLowerCase()}${name === "minor" ? "Minor" : "Major"}`;
  const change = () => act("PUT", `/bookie/gc/${word.toLowerCase()}_compaction`, { [key]: true });
  return h(
    "tr",
    null,
    h("th", { scope: "row" }, name),
    h("td", { class: "number" }, count(kind.count)),
    h("td", { title: moment(kind.last) }, ago(kind.last)),
    h("td", null, kind.suspended ? chip("suspended", "warn") : chip("allowed", "calm")),
    h("td", { class: "act" }, h("button", { class: "small", "data-key": key, onclick: change }, word)),
  );
}

function results(seen) {
  return panel(
    "Since the start",
    `${seen.runs === 1 ? "1 run" : `${count(seen.runs)} runs`}, ${seen.runSeconds < 10 ? `${seen.runSeconds.toFixed(1)} s` : span(seen.runSeconds)} of work`,
    facts([
      ["Ledgers held", count(seen.ledgers)],
      ["Ledgers collected", count(seen.deletedLedgers)],
      ["Freed by removing entry logs", bytes(seen.reclaimedByDeletion)],
      ["Freed by compaction", bytes(seen.reclaimedByCompaction)],
      ["Complete entry logs", `${count(seen.logCount)}, ${bytes(seen.logBytes)}`],
      ["Live data in them", `${bytes(seen.liveBytes)}${seen.logBytes ? ` (${Math.round((seen.liveBytes / seen.logBytes) * 100)} %)` : ""}`],
      ["Runs without the metadata's listing", count(seen.failedListings)],
      ["Ledgers kept in doubt", count(seen.keptCandidates)],
      ["Entry logs that could not go", count(seen.failedDeletions)],
    ]),
  );
}

function usage({ buckets, logCount, runs }) {
  const most = Math.max(1, ...buckets.map((bucket) => bucket.logs));
  const columns = buckets.map((bucket, index) => {
    const height = (bucket.logs / most) * 60;
    return h(
      "div",
      { class: "column", title: `${bucket.logs} logs, ${bytes(bucket.bytes)}` },
      h("b", null, bucket.logs || ""),
      s("svg", { viewBox: "0 0 40 62", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: index < 2 ? "low" : index < 8 ? "middle" : "high", x: 0, width: 40, y: 61 - height, height: height + 1 })),
      h("span", null, `${index * 10}–${index * 10 + 10} %`),
    );
  });
  return panel("Entry logs by live data", runs ? "as the last run saw them" : "known after the first run", h("div", { class: "histogram" }, columns));
}

function logs(seen) {
  const rows = seen.logs.map((log) => {
    const part = log.bytes ? log.liveBytes / log.bytes : 0;
    return h(
      "tr",
      null,
      h("th", { scope: "row", class: "mono" }, `${log.id}.log`),
      h("td", { class: "space" }, bar(part, part < 0.2 ? "warn" : "", `${Math.round(part * 100)} % live`), h("span", null, `${Math.round(part * 100)} %`)),
      h("td", { class: "number" }, bytes(log.liveBytes)),
      h("td", { class: "number" }, bytes(log.bytes)),
      h("td", { class: "number" }, count(log.ledgers)),
    );
  });
  const aside = seen.logCount > seen.logs.length ? `the ${seen.logs.length} emptiest of ${count(seen.logCount)}` : null;
  const number = (text) => ({ text, class: "number" });
  return panel("Entry logs", aside, table("Entry logs", ["Log", { text: "Live", class: "wide" }, number("Live data"), number("Size"), number("Ledgers")], rows, seen.runs ? "No complete entry log: there is only the one that is being written." : "Known after the first run."));
}
