// Ledgers in pages, searched, sorted, deleted together and exported. A page is asked for behind the last id of the one
// before; a search goes on by itself until its page is full.
// What is sorted is what the page has gathered: the list itself goes by id.

import { get, urlOf } from "./api.js";
import { deleteTogether } from "./bulk.js";
import { h, panel, replace, table } from "./dom.js";
import { ago, bytes, count, moment, span } from "./format.js";
import { Gathering } from "./gathering.js";
import { beginsBehind, conditions, filters, rowsWanted } from "./ledger_filters.js";
import { moved, pager } from "./pager.js";
import { link } from "./routes.js";
import { STATES, customMetadata, ledgerChip, ledgerHref, repairChip } from "./words.js";

const COUNTS_MS = 3000;
const MOST_AN_ANSWER = 500;
const entriesOf = ({ lastEntryId }) => (lastEntryId === null || lastEntryId === undefined ? null : BigInt(lastEntryId) + 1n);

// What stands in a column, and by what it is sorted: null for what is not known, which comes last.
const COLUMNS = [
  { text: "Ledger", sort: "id", by: ({ ledgerId }) => BigInt(ledgerId) },
  { text: "State", sort: "state", by: ({ state }) => STATES.indexOf(state) },
  { text: "Size", sort: "size", class: "number", by: ({ length }) => length },
  { text: "Entries", sort: "entries", class: "number", by: entriesOf },
  { text: "E / Qw / Qa", class: "number" },
  { text: "Fragments", sort: "fragments", class: "number", by: ({ fragmentCount }) => fragmentCount },
  { text: "Created", sort: "created", by: ({ created }) => created },
  { text: "Custom metadata" },
];

export function ledgersView(root, context) {
  const { query } = context;
  const total = h("span", { class: "total" });
  const list = new Ledgers(context);
  root.append(h("h1", { class: "hidden" }, "Ledgers"), filters(query), panel("Ledgers", [list.status, total], list.place));
  list.begin();
  // Ledgers of a scope are not counted.
  if ((query.get("scope") || "0") === "0") context.every(COUNTS_MS, () => tellTotal(total, context));
}

/** How many ledgers there are; true when nothing more is to be told. */
async function tellTotal(place, context) {
  try {
    const { total, complete, ageSeconds } = await get("/ledger_counts", {}, context.signal);
    place.textContent = complete ? `${count(total)} in all, counted ${span(ageSeconds)} ago` : `counting: ${count(total)} so far`;
    return complete;
  } catch (error) {
    // Who may list ledgers need not be told how many there are.
    return error.status === 401 || error.status === 403;
  }
}

class Ledgers {
  constructor(context) {
    const { query } = context;
    Object.assign(this, { context, query }, conditions(query));
    this.rows = rowsWanted(query);
    this.status = h("span", { role: "status" });
    this.place = h("div");
    this.gathering = new Gathering(null, this.rows, (next, limit) => this.ask(next, limit), () => this.draw());
    this.deleted = 0;
    this.selected = new Set();
  }

  begin() {
    replace(this.place, h("p", { class: "empty" }, "Loading…"));
    try {
      this.gathering.next = this.query.get("after") ?? beginsBehind(this.query);
    } catch (error) {
      this.context.failed(this.place, error);
      return;
    }
    this.gather();
  }

  gather() {
    this.gathering.run().catch((error) => this.context.failed(this.place, error));
  }

  async ask(next, limit) {
    const { ledgers, ...told } = await get("/ledgers", { ...this.wanted, start_after: next, limit: Math.min(MOST_AN_ANSWER, limit) }, this.context.signal);
    return { found: ledgers, ...told };
  }

  get found() {
    return this.gathering.found;
  }

  get next() {
    return this.gathering.next;
  }

  tellStatus() {
    const { examined, problem } = this.gathering;
    const more = this.next !== null;
    const gone = this.deleted ? `, ${count(this.deleted)} deleted since` : "";
    const found = `${count(this.found.length + this.deleted)} found among ${count(examined)}`;
    const isShort = more && this.found.length + this.deleted < this.rows;
    replace(
      this.status,
      problem ? h("span", { class: "bad" }, `${problem} `) : null,
      this.isSearch ? `${found}${more ? " so far" : ""}${gone} ` : gone.replace(", ", ""),
      this.gathering.control(() => this.gather(), isShort),
    );
  }

  draw() {
    this.tellStatus();
    const shown = this.sorted();
    const columns = [{ text: this.selectAll(shown) }, ...COLUMNS.map((column) => this.heading(column))];
    replace(
      this.place,
      this.tools(),
      this.sortNote(),
      table("Ledgers", columns, shown.map((ledger) => this.row(ledger)), "No ledger here."),
      this.gathering.isRunning ? null : pager("ledgers", this.query, this.next, this.found.length),
    );
  }

  // --- sorting ---

  get sort() {
    const given = this.query.get("sort") ?? "id";
    const name = given.replace(/^-/, "");
    const column = COLUMNS.find((each) => each.sort === name) ?? COLUMNS[0];
    return { column, isDescending: given.startsWith("-") };
  }

  sorted() {
    const { column, isDescending } = this.sort;
    const known = (ledger) => column.by(ledger) ?? null;
    const compare = (one, other) => {
      const [a, b] = [known(one), known(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return a === b ? 0 : (a < b) === isDescending ? 1 : -1;
    };
    return [...this.found].sort(compare);
  }

  heading(column) {
    if (!column.sort) return column;
    const { column: chosen, isDescending } = this.sort;
    const isChosen = chosen === column;
    const choose = () => {
      const before = location.hash;
      const sort = `${isChosen && !isDescending ? "-" : ""}${column.sort}`;
      if (sort === "id") this.query.delete("sort");
      else this.query.set("sort", sort);
      history.replaceState(null, "", link("ledgers", Object.fromEntries(this.query)));
      moved(before, location.hash);
      this.draw();
    };
    const arrow = h("span", { "aria-hidden": "true", class: "arrow" }, isChosen ? (isDescending ? "▼" : "▲") : "");
    return {
      text: h("button", { class: "sort", "data-key": `sort ${column.sort}`, onclick: choose }, column.text, arrow),
      class: column.class,
      sort: isChosen ? (isDescending ? "descending" : "ascending") : null,
    };
  }

  /** Says what is sorted, where that is not all there is. */
  sortNote() {
    const { column, isDescending } = this.sort;
    const isWhole = this.next === null && !this.query.get("after") && !this.query.get("from");
    if (isWhole || (column.sort === "id" && !isDescending)) return null;
    return h(
      "p",
      { class: "note sorted" },
      `Sorted are the ${count(this.found.length)} ledgers shown, not those of other pages: the list goes by id. Take more rows, or narrow the search.`,
    );
  }

  // --- what is done with several of them ---

  tools() {
    const exported = (format) => urlOf("/ledgers_export", { ...this.wanted, start_after: beginsBehind(this.query), format });
    const anchor = (format) => h("a", { class: "button small", href: exported(format), "data-key": format }, format.toUpperCase());
    const { size } = this.selected;
    return h(
      "div",
      { class: "filters tight tools" },
      h("button", { class: "small danger", "data-key": "delete", disabled: size === 0, onclick: () => this.delete() }, size ? `Delete ${count(size)} selected…` : "Delete selected…"),
      h("span", { class: "grow" }),
      h("span", { class: "muted", title: this.query.get("from") ? "from that id on, on this page and on those that follow" : "on all pages" }, this.isSearch ? "Export all that match:" : "Export all:"),
      anchor("csv"),
      anchor("json"),
    );
  }

  selectAll(shown) {
    const all = shown.length > 0 && shown.every(({ ledgerId }) => this.selected.has(ledgerId));
    const choose = (event) => {
      this.selected = new Set(event.target.checked ? shown.map(({ ledgerId }) => ledgerId) : []);
      this.draw();
    };
    return h("input", { type: "checkbox", checked: all, disabled: !shown.length, "aria-label": "Select all shown", "data-key": "select all", onchange: choose });
  }

  select(ledger) {
    const choose = (event) => {
      if (event.target.checked) this.selected.add(ledger.ledgerId);
      else this.selected.delete(ledger.ledgerId);
      this.draw();
    };
    return h("input", { type: "checkbox", checked: this.selected.has(ledger.ledgerId), "aria-label": `Select ledger ${ledger.ledgerId}`, "data-key": `select ${ledger.ledgerId}`, onchange: choose });
  }

  async delete() {
    const chosen = this.sorted().filter(({ ledgerId }) => this.selected.has(ledgerId));
    const gone = await deleteTogether(chosen, this.query.get("scope"), this.context.cluster()?.server.changes);
    this.deleted += gone.size;
    this.gathering.found = this.found.filter(({ ledgerId }) => !gone.has(ledgerId));
    gone.forEach((ledgerId) => this.selected.delete(ledgerId));
    this.draw();
  }

  row(ledger) {
    const anchor = h("a", { href: ledgerHref(ledger.ledgerId, ledger.ledgerScopeId ?? this.query.get("scope")), "data-key": ledger.ledgerId }, ledger.ledgerId);
    const first = [h("td", null, this.select(ledger)), h("th", { scope: "row", class: "mono" }, anchor), h("td", null, ledgerChip(ledger.state), ledger.repair ? repairChip(ledger.repair) : null)];
    if (ledger.problem) return h("tr", null, first, h("td", { colspan: COLUMNS.length - 2 }, ledger.problem));
    const open = h("span", { class: "muted", title: "known when it is closed" }, "–");
    const entries = entriesOf(ledger);
    return h(
      "tr",
      null,
      first,
      h("td", { class: "number" }, ledger.length === null ? open : bytes(ledger.length)),
      h("td", { class: "number" }, entries === null ? open.cloneNode(true) : count(entries)),
      h("td", { class: "number" }, `${ledger.ensembleSize} / ${ledger.writeQuorumSize} / ${ledger.ackQuorumSize}`),
      h("td", { class: "number" }, count(ledger.fragmentCount)),
      h("td", { title: moment(ledger.created) }, ago(ledger.created)),
      h("td", { class: "pairs" }, customMetadata(ledger.customMetadata, ledger.customMetadataCount)),
    );
  }
}
