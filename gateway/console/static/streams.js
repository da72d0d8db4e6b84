// Streams of a scope, and one of them with its fragments and cursors, as the metadata tell.

import { get } from "./api.js";
import { facts, h, panel, replace, table } from "./dom.js";
import { ago, bytes, count, moment, span } from "./format.js";
import { pager } from "./pager.js";
import { link } from "./routes.js";
import { ledgerHref } from "./words.js";

const POLL_MS = 4000;

const streamHref = (name, scope) => link(`stream/${encodeURIComponent(name)}`, { scope });

export function streamsView(root, context) {
  const { query } = context;
  const shown = h("div");
  root.append(h("h1", { class: "hidden" }, "Streams"), shown);
  const refresh = async () => {
    try {
      const scope = query.get("scope");
      const seen = await get("/streams", { ledger_scope_id: scope, start_after: query.get("after") }, context.signal);
      const rows = seen.streams.map((stream) => streamRow(stream, scope));
      const columns = ["Stream", { text: "Cursors", class: "number" }, "Retention", "Created"];
      replace(
        shown,
        panel("Streams", null, table("Streams", columns, rows, "No streams here."), pager("streams", query, seen.next)),
      );
    } catch (error) {
      context.failed(shown, error);
    }
  };
  context.every(POLL_MS, refresh);
}

function streamRow(stream, scope) {
  return h(
    "tr",
    null,
    h("th", { scope: "row" }, h("a", { href: streamHref(stream.name, scope) }, stream.name)),
    h("td", { class: "number" }, count(stream.cursors.length)),
    h("td", null, retentionText(stream.retention)),
    h("td", { title: moment(stream.created) }, stream.created ? ago(stream.created) : ""),
  );
}

function retentionText({ maxAgeSeconds, maxBytes, deleteConsumed, keepForCursors }) {
  const limits = [
    maxAgeSeconds === null ? null : span(maxAgeSeconds),
    maxBytes === null ? null : bytes(maxBytes),
    deleteConsumed ? "until all cursors have it" : null,
  ].filter((each) => each !== null);
  if (!limits.length) return "kept for ever";
  return `${limits.join(", ")}${keepForCursors ? "; waits for cursors" : ""}`;
}

export function streamView(root, context) {
  const [name] = context.rest;
  const shown = h("div");
  root.append(h("h1", null, name), shown);
  const refresh = async () => {
    try {
      const seen = await get("/stream", { name, ledger_scope_id: context.query.get("scope") }, context.signal);
      replace(shown, h("div", { class: "columns" }, about(seen), cursorsPanel(seen)), fragmentsPanel(seen));
    } catch (error) {
      context.failed(shown, error);
    }
  };
  context.every(POLL_MS, refresh);
}

function about(seen) {
  return panel(
    "Stream",
    null,
    facts([
      ["Ledger", h("a", { href: ledgerHref(seen.ledgerId), class: "mono" }, seen.ledgerId)],
      ["Writers so far (term)", count(seen.term)],
      ["First entry", seen.firstEntryId],
      ["Written before the last fragment", bytes(seen.bytesBeforeLastFragment)],
      ["Retention", retentionText(seen.retention)],
      ["Created", h("span", { title: moment(seen.created) }, seen.created ? ago(seen.created) : "")],
    ]),
  );
}

function cursorsPanel(seen) {
  const rows = seen.cursors.map((cursor) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, cursor.name),
      h("td", { class: "number" }, cursor.entryId),
      h("td", { class: "number" }, count(cursor.record)),
      h("td", { title: moment(cursor.committed) }, ago(cursor.committed)),
    ),
  );
  const columns = ["Cursor", { text: "Entry", class: "number" }, { text: "Record", class: "number" }, "Committed"];
  return panel("Cursors", null, table("Cursors", columns, rows, "No cursors."));
}

function fragmentsPanel(seen) {
  const rows = seen.fragments.map((fragment) =>
    h(
      "tr",
      null,
      h("td", { class: "number" }, fragment.firstEntryId),
      h("td", null, fragment.bookies.map((id, at) => [at ? ", " : "", h("a", { href: link(`bookie/${encodeURIComponent(id)}`) }, id)])),
    ),
  );
  return panel("Fragments", `${count(seen.fragments.length)}`, table("Fragments", [{ text: "First entry", class: "number" }, "Bookies"], rows));
}
