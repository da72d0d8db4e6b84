// The entries of a ledger: a page of them in hex or as text, and one of them with all its copies.

import { get, isLoggedIn } from "./api.js";
import { askToken } from "./dialogs.js";
import { h, panel, replace, table } from "./dom.js";
import { asHex, asText, bytes, count, fromBase64, hexDump } from "./format.js";
import { link } from "./routes.js";
import { copyChip, digestChip, notHere } from "./words.js";

const PAGE = 50;
const PREVIEW = 120;

export function entriesPanel(ledger, id, context, matrix) {
  const body = h("div");
  const aside = h("span");
  const server = context.cluster()?.server;
  if (server && !server.features.includes("entries")) {
    return panel("Entries", null, notHere("Entries", context.cluster()));
  }
  if (server?.changes === "token" && !isLoggedIn()) {
    return panel("Entries", null, locked());
  }
  new Entries(ledger, id, context, matrix, body, aside).load();
  return panel("Entries", aside, body);
}

function locked() {
  const unlock = async () => {
    if (await askToken()) window.dispatchEvent(new HashChangeEvent("hashchange"));
  };
  return h("div", { class: "empty" }, h("p", null, "What applications wrote is shown with the token only."), h("button", { class: "primary", onclick: unlock }, "Log in"));
}

class Entries {
  constructor(ledger, id, context, matrix, body, aside) {
    Object.assign(this, { ledger, id, context, matrix, body, aside });
    const { query } = context;
    this.start = BigInt(/^\d+$/.test(query.get("entry") ?? "") ? query.get("entry") : 0);
    this.show = query.get("show") === "hex" ? "hex" : "text";
    this.list = h("div");
    this.shown = [];
    this.opened = null;
  }

  href(entry, show = this.show) {
    const { ledgerId, ledgerScopeId } = this.ledger;
    return link(`ledger/${ledgerId}`, { scope: ledgerScopeId === "0" ? null : ledgerScopeId, entry: entry > 0n ? entry : null, show: show === "hex" ? show : null });
  }

  async load() {
    const { body, aside } = this;
    replace(body, h("p", { class: "empty" }, "Loading…"));
    try {
      const answer = await get("/entries", { ...this.id, start_entry_id: this.start, limit: PAGE }, this.context.signal);
      this.shown = answer.entries;
      this.next = answer.next;
      aside.textContent = answer.lastConfirmed === "-1" ? "no entry is confirmed" : `last confirmed: ${count(answer.lastConfirmed)}`;
      replace(body, this.tools(), this.list);
      this.draw();
    } catch (error) {
      if (error.status === 401) replace(body, locked());
      else this.context.failed(body, error);
    }
  }

  tools() {
    const from = h("input", { inputmode: "numeric", pattern: "[0-9]*", value: String(this.start), "data-search": true });
    const go = (event) => {
      event.preventDefault();
      location.hash = this.href(BigInt(from.value.trim() || 0));
    };
    const choice = (show, text) =>
      h("button", { type: "button", "aria-pressed": String(this.show === show), "data-key": show, onclick: () => this.choose(show) }, text);
    const page = (text, entry) =>
      entry === null ? h("span", { class: "button off", "aria-disabled": "true" }, text) : h("a", { class: "button", href: this.href(entry) }, text);
    const size = BigInt(PAGE);
    const before = this.start > 0n ? (this.start > size ? this.start - size : 0n) : null;
    return h(
      "form",
      { class: "filters tight", onsubmit: go },
      h("label", null, "From entry", from),
      h("button", { type: "submit" }, "Go"),
      page("Previous", before),
      page("Next", this.next === null ? null : BigInt(this.next)),
      h("span", { class: "grow" }),
      h("span", { class: "switch", role: "group", "aria-label": "Show as" }, choice("text", "Text"), choice("hex", "Hex")),
    );
  }

  choose(show) {
    this.show = show;
    history.replaceState(null, "", this.href(this.start));
    // The links to other pages are to keep what was chosen.
    replace(this.body, this.tools(), this.list);
    this.draw();
  }

  draw() {
    const rows = this.shown.flatMap((entry) => (this.opened?.id === entry.id ? [this.row(entry), this.detail()] : [this.row(entry)]));
    const columns = [{ text: "Entry", class: "number" }, { text: "Size", class: "number" }, "Digest", "Copies at", { text: this.show === "hex" ? "Payload in hex" : "Payload as text", class: "most" }];
    replace(this.list, table("Entries", columns, rows, this.start > 0n ? "No confirmed entry from here on." : "No confirmed entry."));
  }

  row(entry) {
    const content = entry.payload === undefined ? null : fromBase64(entry.payload);
    const preview = content === null ? entry.problem : this.show === "hex" ? asHex(content.subarray(0, PREVIEW / 3)) : asText(content).slice(0, PREVIEW);
    const cut = content !== null && (this.show === "hex" ? entry.size > PREVIEW / 3 : asText(content).length > PREVIEW);
    const isOpen = this.opened?.id === entry.id;
    const open = () => (isOpen ? this.close() : this.open(entry.id));
    return h(
      "tr",
      { class: isOpen ? "opens opened" : "opens", onclick: open, onmouseenter: () => this.matrix.mark(entry.id, entry.bookies), onmouseleave: () => this.markOpened() },
      h("th", { scope: "row", class: "number" }, h("button", { class: "link mono", "data-key": `entry ${entry.id}`, "aria-expanded": String(isOpen) }, entry.id)),
      h("td", { class: "number" }, entry.size === undefined ? "–" : bytes(entry.size)),
      h("td", null, digestChip(entry.digest)),
      h("td", { class: "muted" }, entry.bookies.join(", ")),
      h("td", { class: content === null ? "problem" : "mono payload" }, preview, cut ? "…" : null),
    );
  }

  async open(entryId) {
    try {
      this.opened = await get("/entry", { ...this.id, entry_id: entryId }, this.context.signal);
      this.draw();
      this.markOpened();
      this.list.querySelector(".detail-row").scrollIntoView({ block: "nearest", behavior: "instant" });
    } catch (error) {
      if (error.status === 401) replace(this.body, locked());
      else this.context.failed(this.list, error);
    }
  }

  markOpened() {
    this.matrix.mark(this.opened?.id ?? null, this.opened?.bookies ?? []);
  }

  close() {
    this.opened = null;
    this.markOpened();
    this.draw();
  }

  detail() {
    const entry = this.opened;
    const content = entry.payload === undefined ? null : fromBase64(entry.payload);
    const copies = entry.copies.map(({ bookie, state, problem }) =>
      h("span", { class: "copy" }, bookie, copyChip(state), problem && state !== "missing" ? h("span", { class: "muted" }, problem) : null),
    );
    const cut = content !== null && content.length < entry.size ? ` (the first ${bytes(content.length)} are shown)` : "";
    return h(
      "tr",
      { class: "detail-row" },
      h("td", { colspan: 5 }, h(
        "section",
        { class: "detail", "aria-label": `Entry ${entry.id}` },
        h("div", { class: "panel-head" }, h("h3", null, `Entry ${entry.id}`), h("button", { class: "small", onclick: () => this.close() }, "Close")),
        h("p", { class: "copies" }, "Copies: ", copies),
        content === null
          ? h("p", { class: "problem" }, "No bookie has a good copy of it.")
          : [
              h("p", { class: "note" }, `${count(entry.size)} bytes${cut}; the ledger has ${count(entry.ledgerLength)} bytes up to here; last add confirmed when it was written: ${entry.lastAddConfirmed}`),
              h("pre", { tabindex: 0, "aria-label": "Payload" }, this.show === "hex" ? hexDump(content) : asText(content, true)),
            ],
      )),
    );
  }
}
