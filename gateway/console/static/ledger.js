// One ledger: its metadata, which bookie stands in which ensemble, and its entries.

import { get } from "./api.js";
import { carryOut, confirm } from "./dialogs.js";
import { facts, h, panel, replace, table } from "./dom.js";
import { entriesPanel } from "./entries.js";
import { ago, bytes, count, moment } from "./format.js";
import { answersText, isAway, ledgerChip, lossText, repairChip, ledgerName } from "./words.js";

const FRAGMENTS_SHOWN = 100;

export function ledgerView(root, context) {
  load(root, context).catch((error) => {
    if (error.name === "AbortError") return;
    const id = h("input", { inputmode: "numeric", pattern: "[0-9]*", "aria-label": "Another ledger", placeholder: "another id", required: true });
    const go = (event) => {
      event.preventDefault();
      location.hash = `#/ledger/${id.value.trim()}`;
    };
    replace(
      root,
      panel(
        `Ledger ${context.rest[0] ?? ""}`,
        null,
        h("p", { class: "problem", role: "alert" }, error.message),
        h("form", { class: "filters tight", onsubmit: go }, id, h("button", { type: "submit" }, "Go"), h("a", { class: "button", href: "#/ledgers" }, "All ledgers")),
      ),
    );
  });
}

async function load(root, context) {
  const id = { ledger_id: context.rest[0] ?? "", ledger_scope_id: context.query.get("scope") };
  const ledger = await get("/ledger", id, context.signal);
  const matrix = new Matrix(ledger);
  const { repair } = ledger;
  root.append(
    h(
      "div",
      { class: "title" },
      h("h1", null, "Ledger ", h("span", { class: "mono" }, ledgerName(ledger))),
      ledgerChip(ledger.state),
      repair && !repair.problem ? repairChip({ ...repair, unrecoverable: repair.loss !== null }) : null,
      h("span", { class: "grow" }),
      ledger.state !== "CLOSED" && context.cluster()?.server.features.includes("entries")
        ? h("button", { onclick: () => recover(ledger, id, context) }, "Recover and close")
        : null,
      h("button", { class: "danger", onclick: () => remove(ledger, id, context) }, "Delete"),
    ),
    repair ? repairPanel(repair) : "",
    h("div", { class: "columns" }, metadataPanel(ledger), customPanel(ledger)),
    matrix.element,
    entriesPanel(ledger, id, context, matrix),
  );
  context.onCluster((cluster) => matrix.tell(cluster.bookies));
}

async function recover(ledger, id, context) {
  const text = "It is taken from its writer, if there still is one: every further append fails. Its end is found, made durable, and the ledger is closed.";
  const sure = await confirm(`Recover ledger ${ledgerName(ledger)}`, text, "Recover and close", { word: ledgerName(ledger), danger: true });
  if (sure && (await carryOut(context.cluster()?.server.changes, "PUT", "/console/ledger/recover", id))) {
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

async function remove(ledger, id, context) {
  const text = `Its metadata goes at once, and its entries with the bookies' next garbage collection. There is no way back.`;
  const sure = await confirm(`Delete ledger ${ledgerName(ledger)}`, text, "Delete for good", { word: ledgerName(ledger), danger: true });
  if (sure && (await carryOut(context.cluster()?.server.changes, "DELETE", "/ledger/delete", id))) location.hash = "#/ledgers";
}

function repairPanel({ missing, damaged, corruptAt, since, loss, problem }) {
  if (problem) return panel("Repair", null, h("p", { class: "problem" }, `Whether it needs repair is not known: ${problem}`));
  return panel(
    "Repair",
    h("a", { href: "#/autorecovery" }, "Auto-recovery"),
    facts([
      ["Marked", since ? `${ago(since)} (${moment(since)})` : "the mark does not tell when"],
      ["Lacks copies at", missing.join(", ") || lacksNone(damaged, corruptAt)],
      corruptAt.length ? ["Corrupt copies at", h("span", { class: "bad" }, corruptAt.join(", "))] : null,
      loss ? ["Unrecoverable", h("span", { class: "bad" }, lossText(loss))] : null,
      loss?.answers.length ? ["Its bookies answered", answersText(loss.answers)] : null,
      loss?.lostBookies.length ? ["Bookies that would help", loss.lostBookies.join(", ")] : null,
      loss?.givenUpWith.length ? ["Given up with", loss.givenUpWith.join(", ")] : null,
    ]),
  );
}

function lacksNone(damaged, corruptAt) {
  if (damaged) return "the mark can't be read; a worker finds out";
  return corruptAt.length ? "no bookie" : "no bookie: it is only misplaced";
}

function metadataPanel(ledger) {
  const closed = ledger.lastEntryId !== null;
  return panel(
    "Metadata",
    `version ${ledger.version}, format ${ledger.metadataFormatVersion}`,
    facts([
      ledger.ledgerScopeId !== "0" ? ["Scope", h("code", null, ledger.ledgerScopeId)] : null,
      ["Size", closed ? `${bytes(ledger.length)}${ledger.length >= 1024 ? ` (${count(ledger.length)} B)` : ""}` : "known when it is closed"],
      ["Entries", closed ? count(BigInt(ledger.lastEntryId) + 1n) : "known when it is closed"],
      ["Ensemble / write quorum / ack quorum", `${ledger.ensembleSize} / ${ledger.writeQuorumSize} / ${ledger.ackQuorumSize}`],
      ["Digest", ledger.digestType ?? "not named"],
      ["Created", ledger.created ? `${ago(ledger.created)} (${moment(ledger.created)})` : "not noted"],
      ["Fragments", count(ledger.fragmentCount)],
    ]),
  );
}

function customPanel({ customMetadata }) {
  const rows = customMetadata.map(({ key, value, encoding, size }) =>
    h("tr", null, h("th", { scope: "row" }, key), h("td", { class: encoding === "hex" ? "mono break" : "break" }, value), h("td", { class: "muted" }, encoding === "hex" ? "hex" : "", size > 200 ? ` ${bytes(size)}` : "")),
  );
  return panel("Custom metadata", count(customMetadata.length), table("Custom metadata", ["Key", "Value", ""], rows, "None."));
}

/** Fragments by bookies: a cell has the bookie's index in the ensemble. `mark` shows where one entry lies. */
class Matrix {
  constructor(ledger) {
    this.ledger = ledger;
    this.bookies = [...new Set(ledger.fragments.flatMap((fragment) => fragment.ensemble))].sort();
    this.heads = new Map(this.bookies.map((bookie) => [bookie, h("th", { scope: "col", class: "bookie" }, h("span", null, bookie))]));
    this.place = h("div");
    this.all = false;
    this.cells = new Map();
    this.element = panel("Fragments", this.rule(), this.place);
    this.draw();
  }

  rule() {
    const { ensembleSize, writeQuorumSize, writeSets } = this.ledger;
    if (writeQuorumSize === ensembleSize) return "every entry goes to the whole ensemble";
    const sets = writeSets.slice(0, 6).map((indexes, place) => `${place} → ${indexes.join(" ")}`);
    return `entry mod ${ensembleSize} chooses the indexes: ${sets.join(", ")}${writeSets.length > 6 ? ", …" : ""}`;
  }

  draw() {
    const { fragments } = this.ledger;
    const shown = this.all ? fragments : fragments.slice(0, FRAGMENTS_SHOWN);
    const rows = shown.map((fragment) => this.row(fragment));
    const head = h("tr", null, h("th", { scope: "col" }, "Entries"), [...this.heads.values()]);
    const more = () => {
      this.all = true;
      this.draw();
    };
    replace(
      this.place,
      h("div", { class: "scroll" }, h("table", { class: "matrix", "aria-label": "Fragments" }, h("thead", null, head), h("tbody", null, rows))),
      shown.length < fragments.length ? h("button", { onclick: more }, `Show all ${count(fragments.length)} fragments`) : null,
    );
  }

  row(fragment) {
    const { firstEntryId, lastEntryId, ensemble } = fragment;
    const cells = this.bookies.map((bookie) => {
      const index = ensemble.indexOf(bookie);
      const cell = h("td", { class: index < 0 ? "" : "in" }, index < 0 ? "" : index);
      this.cells.set(`${firstEntryId} ${bookie}`, cell);
      return cell;
    });
    return h("tr", null, h("th", { scope: "row", class: "mono" }, `${count(firstEntryId)} – ${lastEntryId === null ? "…" : count(lastEntryId)}`), cells);
  }

  /** Shows which of the bookies are not well. */
  tell(bookies) {
    const states = new Map(bookies.map((bookie) => [bookie.id, bookie]));
    for (const [id, head] of this.heads) {
      const bookie = states.get(id);
      const away = isAway(bookie);
      head.classList.toggle("away", away);
      head.classList.toggle("read-only", !away && bookie.state === "read-only");
      head.title = !bookie ? "no longer known" : bookie.answers === false ? "does not answer" : bookie.state;
    }
  }

  mark(entryId, bookies) {
    this.element.querySelectorAll(".holds").forEach((cell) => cell.classList.remove("holds"));
    if (entryId === null) return;
    const fragment = this.ledger.fragments.findLast((each) => BigInt(each.firstEntryId) <= BigInt(entryId));
    for (const bookie of bookies) this.cells.get(`${fragment?.firstEntryId} ${bookie}`)?.classList.add("holds");
  }
}
