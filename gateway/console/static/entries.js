// The entries of a ledger: a page of them in hex or as text, and one of them with all its copies.

import { download, get, isLoggedIn } from "./api.js";
import { Decoding, SHOWS } from "./decoding.js";
import { locked } from "./dialogs.js";
import { chip, h, panel, replace, table } from "./dom.js";
import { save } from "./files.js";
import { bytes, count, fromBase64 } from "./format.js";
import { link } from "./routes.js";
import { Turns } from "./turns.js";
import { copyChip, digestChip, isAway, notHere } from "./words.js";

const WRITTEN = "What applications wrote";
const PAGE = 50;
const PREVIEW = 120;
const FOLLOW_MS = 1000;
const FOLLOWED = 500;

export function entriesPanel(ledger, id, context, matrix) {
  const body = h("div");
  const aside = h("span");
  const server = context.cluster()?.server;
  if (server && !server.features.includes("entries")) {
    return panel("Entries", null, notHere("Entries", context.cluster()));
  }
  if (server?.changes === "token" && !isLoggedIn()) {
    return panel("Entries", null, locked(WRITTEN));
  }
  const entries = new Entries(ledger, id, context, matrix, body, aside);
  entries.load();
  context.onCluster(({ bookies }) => entries.tell(bookies));
  return panel("Entries", aside, body);
}

class Entries {
  constructor(ledger, id, context, matrix, body, aside) {
    Object.assign(this, { ledger, id, context, matrix, body, aside });
    const { query } = context;
    this.start = BigInt(/^\d+$/.test(query.get("entry") ?? "") ? query.get("entry") : 0);
    this.decoding = new Decoding(query.get("show"), context.signal, () => this.redraw());
    this.find = query.get("find") ?? "";
    this.following = false;
    this.follows = new Turns();
    this.opens = new Turns();
    this.list = h("div");
    this.shown = [];
    this.opened = null;
    this.states = null;
  }

  get show() {
    return this.decoding.show;
  }

  href(entry, { show = this.show, find = this.find } = {}) {
    const { ledgerId, ledgerScopeId } = this.ledger;
    return link(`ledger/${ledgerId}`, { scope: ledgerScopeId === "0" ? null : ledgerScopeId, entry: entry > 0n ? entry : null, show: show === "text" ? null : show, find: find || null });
  }

  /** Marks the bookies that are away; what is shown is drawn anew only where that changes. */
  tell(bookies) {
    const away = () => (this.states === null ? "" : [...this.states.values()].filter(isAway).map(({ id }) => id).join());
    const before = away();
    this.states = new Map(bookies.map((bookie) => [bookie.id, bookie]));
    if (away() !== before && this.shown.length) this.draw();
  }

  async load() {
    const { body, aside } = this;
    replace(body, h("p", { class: "empty" }, "Loading…"));
    try {
      const answer = this.find ? await this.search() : await get("/entries", { ...this.id, start_entry_id: this.start, limit: PAGE }, this.context.signal);
      this.shown = answer.entries;
      this.next = answer.next;
      this.confirmed = answer.lastConfirmed;
      const found = this.find ? `${answer.entries.length} found among ${count(answer.examined)}; ` : "";
      aside.textContent = found + (answer.lastConfirmed === "-1" ? "no entry is confirmed" : `last confirmed: ${count(answer.lastConfirmed)}`);
      await this.decoding.decode(this.shown);
      this.drawAll();
    } catch (error) {
      if (error.status === 401) replace(body, locked(WRITTEN));
      else this.context.failed(body, error);
    }
  }

  /** Goes on until the page is full, since the server looks at some thousand entries a time. */
  async search() {
    const found = [];
    let examined = 0;
    let next = String(this.start);
    let answer;
    do {
      answer = await get("/entry_search", { ...this.id, start_entry_id: next, text: this.find, limit: PAGE - found.length }, this.context.signal);
      found.push(...answer.entries);
      examined += answer.examined;
      next = answer.next;
      if (next !== null) this.aside.textContent = `looked at ${count(examined)} entries, found ${found.length}…`;
    } while (next !== null && found.length < PAGE);
    return { ...answer, entries: found, examined };
  }

  /** Shows what is appended from now on, each second, until told to stop. */
  async follow() {
    this.following = !this.following;
    const isLatest = this.follows.begin();
    replace(this.body, this.tools(), this.list);
    while (this.following && isLatest() && !this.context.signal.aborted) {
      try {
        const answer = await get("/entries", { ...this.id, start_entry_id: this.appended, limit: 100 }, this.context.signal);
        if (!isLatest()) return;
        await this.add(answer.entries);
        if (!isLatest()) return;
        this.aside.textContent = `following; last confirmed: ${count(answer.lastConfirmed)}`;
      } catch (error) {
        if (!isLatest()) return;
        this.following = false;
        replace(this.body, this.tools(), this.list);
        this.context.failed(this.list, error);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
    }
  }

  /** Where following goes on: behind what was confirmed when the page was loaded, and what it shows. */
  get appended() {
    const [confirmed, shown] = [this.confirmed, this.shown.at(-1)?.id ?? -1].map(BigInt);
    return (confirmed > shown ? confirmed : shown) + 1n;
  }

  async add(entries) {
    if (!entries.length) return;
    this.shown = [...this.shown, ...entries].slice(-FOLLOWED);
    await this.decoding.decode(entries);
    this.draw();
    this.list.querySelector("tbody tr:last-child")?.scrollIntoView({ block: "nearest" });
  }

  /** What was chosen is shown at once, and what it decodes when that has come. */
  async redraw() {
    history.replaceState(null, "", this.href(this.start));
    this.drawAll();
    try {
      await this.decoding.decode(this.opened ? [...this.shown, this.opened] : this.shown);
      this.drawAll();
    } catch (error) {
      this.context.failed(this.list, error);
    }
  }

  drawAll() {
    // The links to other pages are to keep what was chosen.
    replace(this.body, this.tools(), this.list);
    this.draw();
  }

  tools() {
    const from = h("input", { inputmode: "numeric", pattern: "[0-9]*", value: String(this.start), "data-search": true });
    const find = h("input", { placeholder: "text, or 0x…", value: this.find, class: "find" });
    const go = (event) => {
      event.preventDefault();
      const wanted = this.href(BigInt(from.value.trim() || 0), { find: find.value });
      if (location.hash === wanted) window.dispatchEvent(new HashChangeEvent("hashchange"));
      else location.hash = wanted;
    };
    const choice = ([show, text]) =>
      h("button", { type: "button", "aria-pressed": String(this.show === show), "data-key": show, onclick: () => this.decoding.choose(show) }, text);
    const page = (text, entry) =>
      entry === null ? h("span", { class: "button off", "aria-disabled": "true" }, text) : h("a", { class: "button", href: this.href(entry) }, text);
    const size = BigInt(PAGE);
    const before = this.start > 0n ? (this.start > size ? this.start - size : 0n) : null;
    return h(
      "form",
      { class: "filters tight", onsubmit: go },
      h("label", null, "From entry", from),
      h("label", null, "Holding", find),
      h("button", { type: "submit" }, "Go"),
      page("Previous", before),
      page("Next", this.next === null ? null : BigInt(this.next)),
      this.ledger.state === "CLOSED" || this.find
        ? null
        : h("button", { type: "button", "aria-pressed": String(this.following), "data-key": "follow", onclick: () => this.follow() }, this.following ? "Stop following" : "Follow"),
      h("span", { class: "grow" }),
      h("span", { class: "switch", role: "group", "aria-label": "Show as" }, SHOWS.map(choice)),
      this.decoding.tools(),
    );
  }

  draw() {
    const rows = this.shown.flatMap((entry) => (this.opened?.id === entry.id ? [this.row(entry), this.detail()] : [this.row(entry)]));
    const columns = [{ text: "Entry", class: "number" }, { text: "Size", class: "number" }, "Digest", "Copies at", { text: this.decoding.heading(), class: "most" }];
    replace(this.list, table("Entries", columns, rows, this.find ? "No entry from here on holds that." : this.start > 0n ? "No confirmed entry from here on." : "No confirmed entry."));
  }

  row(entry) {
    const content = entry.payload === undefined ? null : fromBase64(entry.payload);
    const whole = content === null ? entry.problem : this.decoding.line(entry, content, PREVIEW);
    const preview = content === null ? whole : whole.slice(0, PREVIEW);
    const cut = content !== null && (whole.length > PREVIEW || content.length < entry.size);
    const isOpen = this.opened?.id === entry.id;
    const open = () => (isOpen ? this.close() : this.open(entry.id));
    return h(
      "tr",
      { class: isOpen ? "opens opened" : "opens", onclick: open, onmouseenter: () => this.matrix.mark(entry.id, entry.bookies), onmouseleave: () => this.markOpened() },
      h("th", { scope: "row", class: "number" }, h("button", { class: "link mono", "data-key": `entry ${entry.id}`, "aria-expanded": String(isOpen) }, entry.id)),
      h("td", { class: "number" }, entry.size === undefined ? "–" : bytes(entry.size)),
      h("td", null, digestChip(entry.digest)),
      this.copiesAt(entry.bookies),
      entry.truncates
        ? h("td", { class: "muted" }, "truncate entry: a writer took the ledger over")
        : h("td", { class: content === null ? "problem" : "mono payload" }, preview, cut ? "…" : null),
    );
  }

  /** The bookies that are to have an entry, and how many of them can be asked for it where some can't. */
  copiesAt(bookies) {
    const away = new Set(this.states === null ? [] : bookies.filter((id) => isAway(this.states.get(id))));
    const names = bookies.map((id, at) => [at ? ", " : "", away.has(id) ? h("span", { class: "away", title: "away" }, id) : id]);
    const up = bookies.length - away.size;
    return h("td", { class: "muted" }, names, away.size ? chip(`${up} of ${bookies.length} up`, up ? "warn" : "bad") : null);
  }

  /** What was clicked last counts, whichever answer comes last. */
  async open(entryId) {
    const isLatest = this.opens.begin();
    try {
      const opened = await get("/entry", { ...this.id, entry_id: entryId }, this.context.signal);
      if (!isLatest()) return;
      this.opened = opened;
      await this.decoding.decode([opened]);
      if (!isLatest()) return;
      this.draw();
      this.markOpened();
      this.list.querySelector(".detail-row").scrollIntoView({ block: "nearest", behavior: "instant" });
    } catch (error) {
      if (!isLatest()) return;
      if (error.status === 401) replace(this.body, locked(WRITTEN));
      else this.context.failed(this.list, error);
    }
  }

  markOpened() {
    this.matrix.mark(this.opened?.id ?? null, this.opened?.bookies ?? []);
  }

  copyButton(content) {
    const copy = async (event) => {
      const { target } = event;
      try {
        await navigator.clipboard.writeText(this.decoding.whole(this.opened, content));
        target.textContent = "Copied";
      } catch {
        target.textContent = "The browser forbids it";
      }
    };
    return h("button", { class: "small", type: "button", onclick: copy }, "Copy");
  }

  saveButton(entry) {
    const { ledgerId } = this.ledger;
    const act = async () => {
      try {
        save(`ledger-${ledgerId}-entry-${entry.id}.bin`, "application/octet-stream", await download("/entry_payload", { ...this.id, entry_id: entry.id }));
      } catch (error) {
        this.context.failed(this.list, error);
      }
    };
    return h("button", { class: "small", type: "button", onclick: act }, "Download");
  }

  close() {
    this.opens.begin();
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
        h("div", { class: "panel-head" }, h("h3", null, `Entry ${entry.id}`), h("div", { class: "buttons" }, content === null ? null : [this.copyButton(content), this.saveButton(entry)], h("button", { class: "small", onclick: () => this.close() }, "Close"))),
        h("p", { class: "copies" }, "Copies: ", copies),
        content === null
          ? h("p", { class: "problem" }, "No bookie has a good copy of it.")
          : [
              h("p", { class: "note" }, `${count(entry.size)} bytes${cut}; the ledger has ${count(entry.ledgerLength)} bytes up to here; last add confirmed when it was written: ${entry.lastAddConfirmed}`),
              h("pre", { tabindex: 0, "aria-label": "Payload" }, this.decoding.whole(entry, content)),
            ],
      )),
    );
  }
}
