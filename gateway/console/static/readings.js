// What a gateway counts, in groups. What a number means in full is in the server's words: under the pointer, or below
// each number for those who have no pointer.

import { facts, h, panel } from "./dom.js";
import { bytes, count } from "./format.js";

const GROUPS = [
  ["Calls", { streams: "Streams under way", calls_waiting: "Waiting for their turn", store_calls: "At the metadata store" }],
  [
    "Watches",
    {
      watch_streams: "Streams of ledgers",
      watched_ledgers: "Ledgers watched",
      subscriptions: "Subscriptions",
      watch_lag_seconds: "Longest delay",
      bookie_watch_streams: "Streams of bookies",
    },
  ],
  ["Registrations", { bookie_leases: "Bookies", replication_leases: "Auditors and workers" }],
  ["Metadata store", { store_sessions: "Sessions", store_losses: "Connections lost", store_client_restarts: "Clients made anew" }],
  [
    "Metadata cache",
    {
      cache_ledgers: "Ledgers",
      cache_bytes: "Size",
      cache_hits: "Hits",
      cache_misses: "Misses",
      cache_hit_ratio: "Hit ratio",
      cache_evictions: "Evicted",
    },
  ],
];

// Kept while the panel is drawn anew every few seconds.
let isExplained = false;

export function readingsPanel({ gateway, server }) {
  if (!gateway) return null;
  const groups = h("div", { class: `groups ${isExplained ? "explained" : ""}` }, grouped(gateway).map(group));
  const explain = h("button", { class: "small", "data-key": "explain", "aria-pressed": String(isExplained) }, "Explain");
  explain.addEventListener("click", () => {
    isExplained = !isExplained;
    explain.setAttribute("aria-pressed", String(isExplained));
    groups.classList.toggle("explained", isExplained);
  });
  const whose = server.kind === "gateway" ? "This gateway" : `The gateway of ${server.name}`;
  return panel(whose, ["since its start ", explain], groups);
}

/** `[title, [[label, reading], …]]`; what this page knows no group of stands in the last one, in the server's words. */
function grouped(gateway) {
  const readings = new Map(gateway.map((reading) => [reading.name, reading]));
  const known = GROUPS.map(([title, labels]) => [title, Object.entries(labels).map(([name, label]) => [label, readings.get(name)]).filter(([, reading]) => reading)]);
  const names = new Set(GROUPS.flatMap(([, labels]) => Object.keys(labels)));
  const others = gateway.filter(({ name }) => !names.has(name)).map((reading) => [reading.text, reading]);
  return [...known, ["Others", others]].filter(([, rows]) => rows.length);
}

function group([title, rows]) {
  return h("section", { "aria-label": title }, h("h3", null, title), facts(rows.map(([label, reading]) => [explained(label, reading.text), shown(reading)])));
}

function explained(label, text) {
  if (label === text) return label;
  return [h("span", { class: "tip", title: text }, label), h("span", { class: "why" }, text)];
}

function shown({ name, value }) {
  if (name.endsWith("bytes")) return bytes(value);
  if (name.endsWith("ratio")) return `${Math.round(value * 100)} %`;
  return name.endsWith("seconds") ? `${value.toFixed(1)} s` : count(value);
}
