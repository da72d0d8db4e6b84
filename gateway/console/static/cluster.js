// The cluster at a glance: bookies, gateways, the metadata store, ledgers by state.

import { get } from "./api.js";
import { setReadOnly } from "./changes.js";
import { bar, chip, facts, h, panel, replace, s, table } from "./dom.js";
import { bytes, count, short, span } from "./format.js";
import { readingsPanel } from "./readings.js";
import { STATES, awayFor, bookieChip, isAway, recoveryChips, stateWord } from "./words.js";

const COUNTS_MS = 3000;

export function clusterView(root, context) {
  const tiles = h("div", { class: "tiles" });
  const counts = h("div", { class: "parts" });
  const copies = h("p", { class: "note" });
  const ledgers = h("div", { class: "tile wide", "aria-label": "Ledgers" }, counts, copies);
  const bookies = h("div");
  const below = h("div", { class: "columns" });
  const readings = h("div");
  root.append(h("h1", { class: "hidden" }, "Cluster"), tiles, bookies, below, readings);
  context.onCluster((cluster) => {
    replace(tiles, bookieTile(cluster), spaceTile(cluster), storeTile(cluster), ledgers);
    replace(copies, copiesNote(cluster.recovery));
    replace(bookies, bookieTable(cluster, context));
    replace(below, gatewayPanel(cluster), storePanel(cluster));
    replace(readings, readingsPanel(cluster));
  });
  context.every(COUNTS_MS, async () => {
    try {
      replace(counts, ledgerTile(await get("/ledger_counts", {}, context.signal)));
    } catch (error) {
      context.failed(counts, error);
    }
  });
}

function tile(label, value, note, more) {
  return h("div", { class: "tile", "aria-label": label }, h("h2", null, label), h("p", { class: "value" }, value), more, h("p", { class: "note" }, note));
}

function bookieTile({ bookies }) {
  const of = (state) => bookies.filter((bookie) => bookie.state === state && bookie.answers !== false).length;
  const away = bookies.filter(isAway).length;
  const notes = [of("read-only") ? `${count(of("read-only"))} read-only` : null, away ? `${count(away)} away` : null].filter(Boolean);
  return tile("Bookies", [count(of("writable")), h("small", null, ` of ${count(bookies.length)} writable`)], notes.join(", ") || "all of them answer");
}

function spaceTile({ bookies }) {
  const known = bookies.filter((bookie) => bookie.totalBytes);
  if (!known.length) return tile("Space", "–", "not on this server: see a bookie's console");
  const free = known.reduce((sum, bookie) => sum + bookie.freeBytes, 0);
  const total = known.reduce((sum, bookie) => sum + bookie.totalBytes, 0);
  const used = 1 - free / total;
  const note = `${bytes(free)} free of ${bytes(total)}`;
  return tile("Space used", `${Math.round(used * 100)} %`, note, bar(used, fullness(used), note));
}

function fullness(used) {
  return used >= 0.95 ? "bad" : used >= 0.9 ? "warn" : "";
}

function storeTile({ store, stale }) {
  const word = store.connected && !stale ? "connected" : "out of reach";
  const lost = store.connectionsLost ? `connection lost ${store.connectionsLost === 1 ? "once" : `${count(store.connectionsLost)} times`}` : "connection never lost";
  return tile("Metadata store", h("span", { class: store.connected && !stale ? "" : "bad" }, word), lost);
}

/** How many ledgers lack copies, as far as their marks are counted. */
function copiesNote(recovery) {
  if (!recovery) return null;
  const { lacking, unrecoverable } = recovery;
  if (!lacking && !unrecoverable) return "none is marked as lacking copies";
  const lost = unrecoverable ? `, ${count(unrecoverable)} can't be repaired` : "";
  return h("a", { href: "#/autorecovery", class: unrecoverable ? "bad" : "warn" }, `${count(lacking)} ${lacking === 1 ? "lacks" : "lack"} copies${lost}`);
}

function ledgerTile(counts) {
  const { states, total } = counts;
  const isKnown = total > 0 || counts.complete;
  let at = 0;
  const part = (state) => {
    const width = total ? (states[state] / total) * 100 : 0;
    const piece = s("rect", { class: state.toLowerCase(), x: at, width, height: 8 });
    at += width;
    return piece;
  };
  const age = counts.error
    ? `the count ended early: ${counts.error}`
    : counts.complete
      ? `counted ${span(counts.ageSeconds)} ago`
      : "so far; counting…";
  return [
    h("h2", null, "Ledgers"),
    h("p", { class: "value" }, isKnown ? short(total) : "…", total >= 1e4 ? h("small", null, ` ${count(total)}`) : null),
    s("svg", { class: "meter stack", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: "track", width: 100, height: 8 }), STATES.map(part)),
    h(
      "p",
      { class: "note states" },
      STATES.filter((state) => isKnown && (state !== "DAMAGED" || states[state])).map((state) => {
        const words = [h("i", { class: state.toLowerCase() }), `${count(states[state])} ${stateWord(state)}`];
        return state === "DAMAGED" ? h("span", null, words) : h("a", { href: `#/ledgers?state=${state}` }, words);
      }),
      h("span", { class: "muted" }, age),
    ),
  ];
}

function bookieTable(cluster, context) {
  const columns = ["Bookie", "State", { text: "Space used", class: "wide" }, "Version", "Entries", "Gateway", "HTTP", ""];
  const rows = cluster.bookies.map((bookie) => bookieRow(bookie, cluster, context));
  return panel("Bookies", null, table("Bookies", columns, rows, "No bookie has ever registered here. Start one: bookgate bookie"));
}

function bookieRow(bookie, cluster, context) {
  const own = cluster.server.kind === "bookie" && cluster.server.name === bookie.id;
  const used = bookie.totalBytes ? 1 - bookie.freeBytes / bookie.totalBytes : null;
  const name = h("a", { href: `#/bookie/${encodeURIComponent(bookie.id)}`, "data-key": `bookie ${bookie.id}` }, bookie.id);
  return h(
    "tr",
    { "data-bookie": bookie.id },
    h("th", { scope: "row" }, name, own ? h("span", { class: "here" }, "this server") : null),
    h("td", null, bookieChip(bookie), recoveryChips(bookie), awayFor(bookie)),
    h("td", { class: "space" }, used === null ? h("span", { class: "muted" }, bookie.state === "unavailable" ? "–" : bookie.answers === null ? "not on this server" : "–")
      : [bar(used, fullness(used), `${Math.round(used * 100)} % used`), h("span", null, `${Math.round(used * 100)} %`), h("span", { class: "muted" }, `${bytes(bookie.freeBytes)} free`)]),
    h("td", null, bookie.version?.replace("bookgate/", "") ?? h("span", { class: "muted" }, bookie.state === "unavailable" ? "–" : "other software")),
    h("td", { class: "mono" }, endpoint(bookie, "bookie-rpc")),
    h("td", { class: "mono" }, endpoint(bookie, "bookgate-grpc")),
    h("td", { class: "mono" }, endpoint(bookie, "http")),
    h("td", { class: "act" }, setReadOnly(bookie, cluster, context)),
  );
}

function endpoint(bookie, protocol) {
  const found = bookie.endpoints.filter((each) => each.protocol === protocol);
  if (!found.length) return h("span", { class: "muted" }, "–");
  if (bookie.state === "unavailable") return found.map((each) => h("span", { class: "muted", title: "where it was" }, each.address));
  return found.map((each) => [each.address, [...each.extensions, ...each.auth].map((word) => chip(word, "plain"))]);
}

function gatewayPanel(cluster) {
  const hosted = cluster.bookies.flatMap((bookie) =>
    bookie.state === "unavailable"
      ? []
      : bookie.endpoints.filter((each) => each.protocol === "bookgate-grpc").map((each) => [bookie, each]),
  );
  const rows = hosted.map(([bookie, each]) =>
    h("tr", null, h("td", { class: "mono" }, each.address), h("td", null, bookie.id), h("td", null, bookie.answers === false ? chip("no answer", "bad") : chip("registered", "good"))),
  );
  return panel(
    "Gateways",
    `${count(hosted.length)} hosted by bookies`,
    table("Gateways", ["Address", "Bookie", "State"], rows, "No bookie hosts a gateway."),
  );
}

function storePanel({ store, stale, server }) {
  return panel(
    "Metadata store",
    stale ? chip("out of reach", "bad") : chip("connected", "good"),
    facts([
      ["Address", h("code", null, store.uri)],
      ["Cluster", store.instanceId ? h("code", null, store.instanceId) : "–"],
      ["Kept in", store.metadataStore ?? "–"],
      ["Connections lost", count(store.connectionsLost)],
      store.features.length ? ["Features", store.features.join(", ")] : null,
      store.error ? ["Problem", h("span", { class: "bad" }, store.error)] : null,
      ["Changes over HTTP", { token: "with the token", open: "open, from this machine", off: "off" }[server.changes]],
    ]),
  );
}
