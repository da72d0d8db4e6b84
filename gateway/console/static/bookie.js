// One bookie: its state and switch, where it is, its disks, what it does, its garbage collection, its settings, its log.

import { get } from "./api.js";
import { setReadOnly } from "./changes.js";
import { locked } from "./dialogs.js";
import { bar, facts, h, panel, replace, table } from "./dom.js";
import { ago, bytes, count, moment } from "./format.js";
import { Drawn, Known } from "./rates.js";
import { link } from "./routes.js";
import { Turns } from "./turns.js";
import { awayFor, bookieChip, recoveryChips } from "./words.js";

const POLL_MS = 4000;
const LEVELS = [["info", "everything"], ["warning", "warnings and errors"], ["error", "errors"]];

export function bookieView(root, context) {
  const id = context.rest[0] ?? "";
  const head = h("div", { class: "title" });
  const columns = h("div", { class: "columns" });
  const grid = h("div", { class: "charts" });
  const more = h("div");
  const log = h("div");
  root.append(head, columns, grid, more, log);
  const known = new Known();
  const drawn = new Drawn(grid);
  context.signal.addEventListener("abort", () => drawn.close());
  context.onCluster((cluster) => {
    const bookie = cluster.bookies.find((each) => each.id === id);
    if (!bookie) {
      replace(head, h("h1", null, "Bookie ", h("span", { class: "mono" }, id)));
      replace(columns, h("p", { class: "empty" }, "No bookie of this name has ever registered here. ", h("a", { href: "#/cluster" }, "To the cluster")));
      return;
    }
    replace(
      head,
      h("h1", null, "Bookie ", h("span", { class: "mono" }, id)),
      bookieChip(bookie),
      recoveryChips(bookie),
      awayFor(bookie),
      h("span", { class: "grow" }),
      h("a", { class: "button", href: link("ledgers", { bookie: id }) }, "Its ledgers"),
      bookie.console ? h("a", { class: "button", href: bookie.console, rel: "noopener" }, "Its own console") : null,
      setReadOnly(bookie, cluster, context),
    );
    replace(columns, placePanel(bookie), spacePanel(bookie));
  });
  context.every(POLL_MS, async () => {
    const { server } = context.cluster() ?? {};
    if (!server?.features.includes("peers")) return;
    try {
      known.take((await get("/cluster_rates", { since: known.last() }, context.signal)).bookies);
      drawn.draw(known.names().includes(id) ? known.charts(id) : []);
    } catch (error) {
      context.failed(grid, error);
    }
  });
  loadDetails(id, more, context);
  replace(log, logPanel(id, context));
}

/** The latest lines, loaded when somebody looks at them. */
function logPanel(id, context) {
  const body = h("div");
  const level = h("select", { "aria-label": "Level", onchange: () => load() }, LEVELS.map(([value, text]) => h("option", { value }, text)));
  const turns = new Turns();
  const load = async () => {
    const isLatest = turns.begin();
    try {
      const { lines } = await get("/bookie/log", { bookie_id: id, level: level.value }, context.signal);
      if (!isLatest()) return;
      const written = lines.map((line) => h("span", { class: line.level === "info" || line.level === "debug" ? "" : "bad" }, `${line.text}\n`));
      replace(body, lines.length ? h("pre", { class: "log", tabindex: 0, "aria-label": "Lines" }, written) : h("p", { class: "empty" }, "No line of this level is among the latest that it keeps."));
      if (lines.length) body.firstChild.scrollTop = body.firstChild.scrollHeight;
    } catch (error) {
      if (!isLatest()) return;
      if (error.status === 401) replace(body, locked("What a bookie logs"));
      else if (error.status === 404) replace(body, h("p", { class: "empty" }, "It is not registered now, or has no HTTP admin of this kind: its log can't be asked for."));
      else context.failed(body, error);
    }
  };
  const opened = (event) => event.target.open && load();
  return panel(
    "Log",
    "the latest lines",
    h("details", { ontoggle: opened }, h("summary", null, "Show it"), h("div", { class: "buttons" }, level, h("button", { class: "small", type: "button", onclick: load }, "Read again")), body),
  );
}

async function loadDetails(id, place, context) {
  try {
    const told = await get("/bookie", { bookie_id: id }, context.signal);
    const settings = Object.entries(told.configuration ?? {});
    const rows = settings.map(([name, value]) => h("tr", null, h("th", { scope: "row", class: "mono" }, name), h("td", { class: "mono break" }, shown(value))));
    const collection = Array.isArray(told.collection) ? told.collection : [];
    replace(
      place,
      collection.length
        ? panel("Garbage collection", h("span", null, "as it tells"), collection.map((each) => facts(Object.entries(each).map(([name, value]) => [words(name), name.endsWith("Time") && value > 1e12 ? `${ago(value)} (${moment(value)})` : shown(value)]))))
        : null,
      panel(
        "Settings in force",
        "secrets masked",
        h("details", null, h("summary", null, `Show all ${count(settings.length)}`), table("Settings", ["Setting", "Value"], rows, "It does not tell its settings.")),
      ),
    );
  } catch (error) {
    if (error.status === 404) replace(place, h("p", { class: "empty" }, "It is not registered now, or has no HTTP admin of this kind: its settings can't be asked for."));
    else context.failed(place, error);
  }
}

function words(name) {
  return name.replace(/([A-Z])/g, " $1").toLowerCase();
}

function shown(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function placePanel(bookie) {
  const away = bookie.state === "unavailable";
  return panel(
    "Where it is",
    away && bookie.endpoints.length ? "as this server last saw it" : null,
    facts([
      ["Version", bookie.version ?? (away ? "–" : "other software")],
      ...bookie.endpoints.map((each) => [each.protocol, h("code", null, [each.address, ...each.extensions, ...each.auth].join(" "))]),
      bookie.endpoints.length ? null : ["Addresses", away ? "not known: it was away when this server was first looked at" : "it tells none"],
    ]),
  );
}

function spacePanel(bookie) {
  if (!bookie.totalBytes) return panel("Space", null, h("p", { class: "empty" }, bookie.state === "unavailable" ? "It is not registered." : "It does not tell its space."));
  const used = 1 - bookie.freeBytes / bookie.totalBytes;
  return panel(
    "Space",
    `${Math.round(used * 100)} % used`,
    h("p", null, bar(used, used >= 0.95 ? "bad" : used >= 0.9 ? "warn" : "", "used")),
    facts([
      ["Free", bytes(bookie.freeBytes)],
      ["In all", bytes(bookie.totalBytes)],
    ]),
  );
}
