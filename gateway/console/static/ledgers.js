// Ledgers in pages, searched by id, state and custom metadata. A page is asked for behind the last id of the one
// before; a search goes on by itself until its page is full, since the server looks at some thousand ledgers a time.

import { get } from "./api.js";
import { h, panel, replace, table } from "./dom.js";
import { save } from "./files.js";
import { ago, bytes, count, moment } from "./format.js";
import { pager } from "./pager.js";
import { link } from "./routes.js";
import { STATES, customMetadata, ledgerChip, ledgerHref, stateWord } from "./words.js";

const PAGE = 50;
const COLUMNS = ["Ledger", "State", { text: "Size", class: "number" }, { text: "Entries", class: "number" }, { text: "E / Qw / Qa", class: "number" }, { text: "Fragments", class: "number" }, "Created", "Custom metadata"];

const DAY = 86_400_000;
const SIZES = {
  "": { text: "any" },
  empty: { text: "empty", wanted: { max_length: 0 } },
  small: { text: "under 1 MiB", wanted: { min_length: 1, max_length: 2 ** 20 - 1 } },
  medium: { text: "1 MiB – 1 GiB", wanted: { min_length: 2 ** 20, max_length: 2 ** 30 - 1 } },
  large: { text: "1 GiB or more", wanted: { min_length: 2 ** 30 } },
};
const AGES = {
  "": { text: "at any time" },
  hour: { text: "in the last hour", wanted: () => ({ created_after: Date.now() - DAY / 24 }) },
  day: { text: "in the last day", wanted: () => ({ created_after: Date.now() - DAY }) },
  week: { text: "in the last week", wanted: () => ({ created_after: Date.now() - 7 * DAY }) },
  older: { text: "over a week ago", wanted: () => ({ created_before: Date.now() - 7 * DAY }) },
  old: { text: "over 30 days ago", wanted: () => ({ created_before: Date.now() - 30 * DAY }) },
};

function csv(ledgers) {
  const names = ["ledgerId", "state", "length", "lastEntryId", "ensembleSize", "writeQuorumSize", "ackQuorumSize", "created"];
  // A quote, and what a spreadsheet would take for a formula, stand as text.
  const cell = (value) => `"${String(value ?? "").replaceAll('"', '""').replace(/^[=+@-](?!\d)/, "'$&")}"`;
  return [names, ...ledgers.map((ledger) => names.map((name) => ledger[name]))].map((row) => row.map(cell).join(",")).join("\r\n");
}

export function ledgersView(root, context) {
  const { query } = context;
  const shown = h("div");
  const status = h("span", { role: "status" });
  root.append(h("h1", { class: "hidden" }, "Ledgers"), filters(query), panel("Ledgers", status, shown));
  load(shown, status, context).catch((error) => {
    status.textContent = "";
    context.failed(shown, error);
  });
}

function filters(query) {
  const from = h("input", { name: "from", inputmode: "numeric", pattern: "[0-9]*", placeholder: "id", value: query.get("from") ?? "", title: "an id: the list begins with it", "data-search": true });
  const metadata = h("input", { name: "metadata", placeholder: "text, or key=text", value: query.get("metadata") ?? "", class: "long" });
  const scope = h("input", { name: "scope", placeholder: "0", value: query.get("scope") ?? "", pattern: "-?[0-9]*" });
  const state = h(
    "select",
    { name: "state" },
    h("option", { value: "" }, "any"),
    STATES.filter((each) => each !== "DAMAGED").map((each) => h("option", { value: each, selected: query.get("state") === each }, stateWord(each))),
  );
  const bookie = h("input", { name: "bookie", placeholder: "any", value: query.get("bookie") ?? "" });
  const size = h(
    "select",
    { name: "size" },
    Object.entries(SIZES).map(([name, { text }]) => h("option", { value: name, selected: (query.get("size") ?? "") === name }, text)),
  );
  const age = h(
    "select",
    { name: "age" },
    Object.entries(AGES).map(([name, { text }]) => h("option", { value: name, selected: (query.get("age") ?? "") === name }, text)),
  );
  const submit = (event) => {
    event.preventDefault();
    const wanted = link("ledgers", { from: from.value.trim(), state: state.value, metadata: metadata.value.trim(), bookie: bookie.value.trim(), size: size.value, age: age.value, scope: scope.value.trim() });
    if (location.hash === wanted) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = wanted;
  };
  return h(
    "form",
    { class: "filters", role: "search", onsubmit: submit },
    h("label", null, "From id", from),
    h("label", null, "State", state),
    h("label", null, "Custom metadata", metadata),
    h("label", null, "On bookie", bookie),
    h("label", null, "Size", size),
    h("label", null, "Created", age),
    h("label", { class: "narrow" }, "Scope", scope),
    h("button", { type: "submit", class: "primary" }, "Search"),
    h("a", { class: "button", href: "#/ledgers" }, "Clear"),
  );
}

async function load(shown, status, context) {
  const { query } = context;
  const scope = query.get("scope");
  const conditions = { state: STATES.find((each) => each === query.get("state")?.toUpperCase()), metadata: query.get("metadata"), bookie: query.get("bookie"), ...SIZES[query.get("size") ?? ""]?.wanted, ...AGES[query.get("age") ?? ""]?.wanted?.() };
  const wanted = { ...conditions, ledger_scope_id: scope };
  const isSearch = Object.values(conditions).some((each) => each !== null && each !== undefined && each !== "");
  let after = query.get("after") ?? before(query.get("from"));
  const found = [];
  let examined = 0;
  let next = null;
  let stopped = false;
  replace(shown, h("p", { class: "empty" }, "Loading…"));
  do {
    const answer = await get("/ledgers", { ...wanted, start_after: after, limit: PAGE - found.length }, context.signal);
    found.push(...answer.ledgers);
    examined += answer.examined;
    next = after = answer.next;
    if (isSearch && next !== null && found.length < PAGE) {
      const stop = h("button", { class: "small", onclick: () => (stopped = true) }, "Stop");
      replace(status, `looked at ${count(examined)} ledgers, found ${found.length} `, stop);
      if (found.length) draw(shown, found, scope);
    }
  } while (isSearch && next !== null && found.length < PAGE && !stopped);
  replace(status, isSearch ? `${found.length} found among ${count(examined)}${next !== null ? " so far" : ""}` : null);
  draw(shown, found, scope);
  shown.append(pager("ledgers", query, next, found.length));
  if (found.length) shown.lastChild.append(h("button", { class: "small", onclick: () => save("ledgers.csv", "text/csv", csv(found)) }, "Save as CSV"));
}

/** The id before this one, behind which a page begins with it. */
function before(id) {
  return id ? String(BigInt(id) - 1n) : null;
}

function draw(shown, found, scope) {
  replace(shown, table("Ledgers", COLUMNS, found.map((ledger) => row(ledger, scope)), "No ledger here."));
}

function row(ledger, scope) {
  const link = h("a", { href: ledgerHref(ledger.ledgerId, ledger.ledgerScopeId ?? scope), "data-key": ledger.ledgerId }, ledger.ledgerId);
  if (ledger.problem) {
    return h("tr", null, h("th", { scope: "row", class: "mono" }, link), h("td", null, ledgerChip(ledger.state)), h("td", { colspan: COLUMNS.length - 2 }, ledger.problem));
  }
  const open = h("span", { class: "muted", title: "known when it is closed" }, "–");
  return h(
    "tr",
    null,
    h("th", { scope: "row", class: "mono" }, link),
    h("td", null, ledgerChip(ledger.state)),
    h("td", { class: "number" }, ledger.length === null ? open : bytes(ledger.length)),
    h("td", { class: "number" }, ledger.lastEntryId === null ? open.cloneNode(true) : count(BigInt(ledger.lastEntryId) + 1n)),
    h("td", { class: "number" }, `${ledger.ensembleSize} / ${ledger.writeQuorumSize} / ${ledger.ackQuorumSize}`),
    h("td", { class: "number" }, count(ledger.fragmentCount)),
    h("td", { title: moment(ledger.created) }, ago(ledger.created)),
    h("td", { class: "pairs" }, customMetadata(ledger.customMetadata, ledger.customMetadataCount)),
  );
}
