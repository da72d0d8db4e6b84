// What ledgers are looked for: the form above their list, and what it asks of the server.

import { h } from "./dom.js";
import { link } from "./routes.js";
import { STATES, stateWord } from "./words.js";

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
const ROWS = ["50", "200", "1000"];

/** Most ledgers that a page of the list holds. */
export function rowsWanted(query) {
  return Number(ROWS.find((each) => each === query.get("rows")) ?? ROWS[0]);
}

/** The conditions, as the server takes them, and whether there are any. */
export function conditions(query) {
  const wanted = {
    state: STATES.find((each) => each === query.get("state")?.toUpperCase()),
    metadata: query.get("metadata"),
    bookie: query.get("bookie"),
    ...SIZES[query.get("size") ?? ""]?.wanted,
    ...AGES[query.get("age") ?? ""]?.wanted?.(),
  };
  const isSearch = Object.values(wanted).some((each) => each !== null && each !== undefined && each !== "");
  return { wanted: { ...wanted, ledger_scope_id: query.get("scope") }, isSearch };
}

/** The id behind which the list begins; null for its beginning. Throws for an id that is none. */
export function beginsBehind(query) {
  const from = query.get("from");
  if (!from) return null;
  if (!/^\d+$/.test(from)) throw new Error(`From id: "${from}" is no ledger's id, which is a whole number`);
  // In a scope, whose ids have no sign, what is in front of 0 is the greatest id.
  return BigInt(from) === 0n ? null : String(BigInt(from) - 1n);
}

function choice(query, name, options) {
  const chosen = query.get(name) ?? options[0][0];
  return h("select", { name }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

function input(query, name, properties) {
  return h("input", { name, value: query.get(name) ?? "", ...properties });
}

export function filters(query) {
  const texts = (known) => Object.entries(known).map(([name, { text }]) => [name, text]);
  const fields = {
    from: input(query, "from", { inputmode: "numeric", pattern: "[0-9]*", placeholder: "id", title: "an id: the list begins with it", "data-search": true }),
    state: choice(query, "state", [["", "any"], ...STATES.filter((each) => each !== "DAMAGED").map((each) => [each, stateWord(each)])]),
    metadata: input(query, "metadata", { placeholder: "text, or key=text", class: "long" }),
    bookie: input(query, "bookie", { placeholder: "any" }),
    size: choice(query, "size", texts(SIZES)),
    age: choice(query, "age", texts(AGES)),
    rows: choice(query, "rows", ROWS.map((each) => [each, each])),
    scope: input(query, "scope", { placeholder: "0", pattern: "-?[0-9]*" }),
  };
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value.trim()]));
    const rows = given.rows === ROWS[0] ? null : given.rows;
    const wanted = link("ledgers", { ...given, rows, sort: query.get("sort") });
    if (location.hash === wanted) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = wanted;
  };
  return h(
    "form",
    { class: "filters", role: "search", onsubmit: submit },
    h("label", null, "From id", fields.from),
    h("label", null, "State", fields.state),
    h("label", null, "Custom metadata", fields.metadata),
    h("label", null, "On bookie", fields.bookie),
    h("label", null, "Size", fields.size),
    h("label", null, "Created", fields.age),
    h("label", { class: "narrow" }, "Scope", fields.scope),
    h("label", { class: "narrow" }, "Rows", fields.rows),
    h("button", { type: "submit", class: "primary" }, "Search"),
    h("a", { class: "button", href: "#/ledgers" }, "Clear"),
  );
}
