// Streams of a scope, and one of them with its fragments and cursors, as the metadata tell; what an operator changes.

import { get } from "./api.js";
import { askText, carryOut, confirm } from "./dialogs.js";
import { facts, h, panel, replace, table } from "./dom.js";
import { ago, bytes, count, moment, span } from "./format.js";
import { Gathering } from "./gathering.js";
import { pager } from "./pager.js";
import { link } from "./routes.js";
import { Turns } from "./turns.js";
import { ledgerHref } from "./words.js";

const POLL_MS = 4000;
const PAGE = 100;
const PLACES = "Give earliest, latest, an entry's id, ENTRY:RECORD, or a time such as 2026-01-31T12:00:00Z.";

const streamHref = (name, scope) => link(`stream/${encodeURIComponent(name)}`, { scope });

export function streamsView(root, context) {
  const list = new StreamList(context);
  root.append(h("h1", { class: "hidden" }, "Streams"), list.place);
  context.every(POLL_MS, () => list.refresh());
}

/** A page of streams: a scope may have many other ledgers in front of them. */
class StreamList {
  constructor(context) {
    this.context = context;
    this.place = h("div");
  }

  get scope() {
    return this.context.query.get("scope");
  }

  /** Begins anew. True for a search of several answers, which nobody makes again without being asked. */
  async refresh() {
    const after = this.context.query.get("after");
    this.gathering = new Gathering(after, PAGE, (next, limit) => this.ask(next, limit), () => this.draw());
    await this.gather();
    return this.gathering.answers > 1 || this.gathering.isToStop;
  }

  async gather() {
    try {
      await this.gathering.run();
    } catch (error) {
      this.context.failed(this.place, error);
    }
  }

  async ask(next, limit) {
    const { streams, ...told } = await get("/streams", { ledger_scope_id: this.scope, start_after: next, limit }, this.context.signal);
    return { found: streams, ...told };
  }

  draw() {
    const { found, examined, next, problem, isRunning } = this.gathering;
    const rows = found.map((stream) => streamRow(stream, this.scope));
    const columns = ["Stream", { text: "Cursors", class: "number" }, "Retention", "Created"];
    const control = this.gathering.control(() => this.gather());
    const status = h(
      "span",
      { role: "status" },
      problem ? h("span", { class: "bad" }, `${problem} `) : null,
      control ? `${count(found.length)} found among ${count(examined)} ledgers so far ` : null,
      control,
    );
    replace(
      this.place,
      panel(
        "Streams",
        status,
        table("Streams", columns, rows, next === null ? "No streams here." : "No stream so far."),
        isRunning ? null : pager("streams", this.context.query, next),
      ),
    );
  }
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
  const offered = h("div", { class: "buttons" });
  root.append(h("div", { class: "title" }, h("h1", null, name), h("span", { class: "grow" }), offered), shown);
  const turns = new Turns();
  const refresh = async () => {
    const isLatest = turns.begin();
    try {
      const seen = await get("/stream", { name, ledger_scope_id: context.query.get("scope") }, context.signal);
      if (!isLatest()) return;
      const changes = context.cluster()?.server.features.includes("streams") ? new Changes(seen, context, refresh) : null;
      replace(offered, changes?.ofStream());
      replace(shown, h("div", { class: "columns" }, about(seen), cursorsPanel(seen, changes)), fragmentsPanel(seen));
    } catch (error) {
      if (!isLatest()) return;
      if (!context.signal.aborted) replace(offered);
      context.failed(shown, error);
    }
  };
  context.every(POLL_MS, refresh);
}

/** The changes that whoever looks may make, each behind a question. */
class Changes {
  constructor(seen, context, refresh) {
    this.seen = seen;
    this.context = context;
    this.refresh = refresh;
  }

  ofStream() {
    const { may } = this.seen;
    return [
      may.trim ? h("button", { "data-key": "trim", onclick: () => this.trim() }, "Trim") : null,
      may.delete ? h("button", { "data-key": "delete", class: "danger", onclick: () => this.delete() }, "Delete") : null,
    ];
  }

  ofCursor(cursor) {
    const { may, name } = cursor;
    return h(
      "td",
      null,
      may.move ? h("button", { class: "small", "data-key": `move ${name}`, "aria-label": `Move cursor ${name}`, onclick: () => this.move(cursor) }, "Move") : null,
      " ",
      may.delete ? h("button", { class: "small danger", "data-key": `delete ${name}`, "aria-label": `Delete cursor ${name}`, onclick: () => this.deleteCursor(cursor) }, "Delete") : null,
    );
  }

  async trim() {
    const text = `The records before this place are deleted for good, whatever cursors stand there, as far as complete fragments reach. ${PLACES}`;
    const before = await askText(`Trim stream ${this.seen.name}`, text, "First record to keep", "Delete the records before it", { danger: true });
    if (before !== null) await this.carryOut("PUT", "trim", {}, { before });
  }

  async delete() {
    const { name } = this.seen;
    const text = "Its records and its cursors go for good, and its writer and its readers fail. There is no way back.";
    const sure = await confirm(`Delete stream ${name}`, text, "Delete for good", { word: name.trim(), danger: true });
    if (sure && (await this.carryOut("DELETE", "delete", {}, undefined, false))) location.hash = link("streams", { scope: this.scope });
  }

  async move({ name, entryId, record }) {
    const text = `Its consumer goes on from there: what lies between comes again, or never. It moves only if it still stands at ${entryId}:${record}. ${PLACES}`;
    const to = await askText(`Move cursor ${name}`, text, "Where to", "Move", { value: `${entryId}:${record}` });
    if (to !== null) await this.carryOut("PUT", "cursor", { cursor: name }, { to, expected: `${entryId}:${record}` });
  }

  async deleteCursor({ name }) {
    const text = "No retention waits for it any more. A consumer that uses its name again begins anew.";
    if (await confirm(`Delete cursor ${name}`, text, "Delete", { danger: true })) await this.carryOut("DELETE", "cursor", { cursor: name });
  }

  get scope() {
    return this.context.query.get("scope");
  }

  async carryOut(method, path, query, body, stays = true) {
    const named = { name: this.seen.name, ledger_scope_id: this.scope, ...query };
    const done = await carryOut(this.context.cluster()?.server.changes, method, `/stream/${path}`, named, body);
    if (done && stays) await this.refresh();
    return done;
  }
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

/** Where a cursor stands, and since when. */
function standing(cursor) {
  return [
    h("td", { class: "number" }, cursor.entryId),
    h("td", { class: "number" }, count(cursor.record)),
    h("td", { title: moment(cursor.committed) }, ago(cursor.committed)),
  ];
}

function cursorsPanel(seen, changes) {
  const offersAny = changes !== null && seen.cursors.some(({ may }) => may.move || may.delete);
  const rows = seen.cursors.map((cursor) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, cursor.name),
      cursor.problem ? h("td", { colspan: 3, class: "problem" }, cursor.problem) : standing(cursor),
      offersAny ? changes.ofCursor(cursor) : null,
    ),
  );
  const columns = ["Cursor", { text: "Entry", class: "number" }, { text: "Record", class: "number" }, "Committed", ...(offersAny ? [""] : [])];
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
