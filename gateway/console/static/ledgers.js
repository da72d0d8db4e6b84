// Ledgers in pages, searched by id, state and custom metadata. A page is asked for behind the last id of the one
// before; a search goes on by itself until its page is full, since the server looks at some thousand ledgers a time.

import { get } from "./api.js";
import { h, panel, replace, table } from "./dom.js";
import { ago, bytes, count, moment } from "./format.js";
import { pager } from "./pager.js";
import { link } from "./routes.js";
import { STATES, customMetadata, ledgerChip, ledgerHref, stateWord } from "./words.js";

const PAGE = 50;
const COLUMNS = ["Ledger", "State", { text: "Size", class: "number" }, { text: "Entries", class: "number" }, { text: "E / Qw / Qa", class: "number" }, { text: "Fragments", class: "number" }, "Created", "Custom metadata"];

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
  const submit = (event) => {
    event.preventDefault();
    const wanted = link("ledgers", { from: from.value.trim(), state: state.value, metadata: metadata.value.trim(), scope: scope.value.trim() });
    if (location.hash === wanted) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = wanted;
  };
  return h(
    "form",
    { class: "filters", role: "search", onsubmit: submit },
    h("label", null, "From id", from),
    h("label", null, "State", state),
    h("label", null, "Custom metadata", metadata),
    h("label", { class: "narrow" }, "Scope", scope),
    h("button", { type: "submit", class: "primary" }, "Search"),
    h("a", { class: "button", href: "#/ledgers" }, "Clear"),
  );
}

async function load(shown, status, context) {
  const { query } = context;
  const scope = query.get("scope");
  const wanted = { state: query.get("state"), metadata: query.get("metadata"), ledger_scope_id: scope };
  const isSearch = Boolean(wanted.state || wanted.metadata);
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
