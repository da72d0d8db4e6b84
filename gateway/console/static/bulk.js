// Deletes many ledgers by the one route that deletes any: ledger by ledger, so each is checked, limited and written down
// as if it were the only one.

import { change } from "./api.js";
import { ask, confirm, mayChange, tell } from "./dialogs.js";
import { h } from "./dom.js";
import { count } from "./format.js";

const NAMED = 8;

/** Deletes these ledgers after one question, until the first is refused. Gives the ids of those that are gone. */
export async function deleteTogether(ledgers, scope, needs) {
  const title = `Delete ${ledgersInWords(ledgers.length)}`;
  const word = ledgers.length === 1 ? ledgers[0].ledgerId : String(ledgers.length);
  if (!(await confirm(title, warning(ledgers), "Delete for good", { word, danger: true }))) return new Set();
  if (!(await mayChange(needs))) return new Set();
  const deletion = new Deletion(ledgers, scope);
  await deletion.show(title);
  return deletion.gone;
}

function ledgersInWords(number) {
  return number === 1 ? "1 ledger" : `${count(number)} ledgers`;
}

function warning(ledgers) {
  const open = ledgers.filter(({ state }) => state === "OPEN" || state === "IN_RECOVERY").length;
  const ids = ledgers.slice(0, NAMED).map(({ ledgerId }) => ledgerId).join(", ");
  const named = ledgers.length > NAMED ? `${ids}, … ${ledgers.at(-1).ledgerId}` : ids;
  const what = ledgers.length === 1 ? "Ledger" : "Ledgers";
  const writers = open ? ` ${count(open)} of them ${open === 1 ? "is" : "are"} not closed: whoever writes there can't go on.` : "";
  return `${what} ${named}.${writers} Metadata go at once, ledger by ledger, and entries with the bookies' next garbage collection. There is no way back.`;
}

class Deletion {
  constructor(ledgers, scope) {
    Object.assign(this, { ledgers, scope });
    this.gone = new Set();
    this.deleted = 0;
    this.refusal = null;
    this.stopper = new AbortController();
    this.bar = h("progress", { max: ledgers.length, "aria-label": "Deleted" });
    this.text = h("p", { role: "status" });
    this.button = h("button", { type: "button", onclick: () => this.stopper.abort() }, "Stop");
  }

  /** Deletes while a dialog tells how far it is; done when its account has been read. */
  async show(title) {
    const running = this.run();
    let isTold = false;
    await ask(title, (finish) => {
      running.then(() => {
        isTold = true;
        this.bar.value = this.gone.size;
        this.text.textContent = this.account();
        this.button.replaceWith(h("button", { type: "button", class: "primary", onclick: () => finish(true) }, "Close"));
      });
      return h("div", { class: "progress" }, this.bar, this.text, h("div", { class: "buttons" }, this.button));
    });
    const isRead = isTold;
    this.stopper.abort();
    await running;
    if (!isRead) await tell(title, this.account());
  }

  async run() {
    for (const { ledgerId } of this.ledgers) {
      this.told();
      if (this.stopper.signal.aborted) return;
      try {
        await this.delete(ledgerId);
      } catch (error) {
        this.refusal = { ledgerId, text: error.message };
        return;
      }
    }
  }

  told(waits = "") {
    this.bar.value = this.gone.size;
    this.text.textContent = `${count(this.gone.size)} of ${count(this.ledgers.length)} are gone${waits}`;
  }

  /** One ledger, when the server has time for it. Throws Refused. */
  async delete(ledgerId) {
    while (!this.stopper.signal.aborted) {
      try {
        await change("DELETE", "/ledger/delete", { ledger_id: ledgerId, ledger_scope_id: this.scope });
        this.deleted += 1;
        this.gone.add(ledgerId);
        return;
      } catch (error) {
        if (error.status === 404) {
          this.gone.add(ledgerId);
          return;
        }
        if (error.status !== 429 || !error.retrySeconds) throw error;
        await this.wait(error.retrySeconds);
      }
    }
  }

  /** Waits as long as the server wants, unless it is stopped. */
  async wait(seconds) {
    const { signal } = this.stopper;
    for (let left = seconds; left > 0 && !signal.aborted; left -= 1) {
      this.told(`; over a limit of the server, which takes more in ${count(left)} s`);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  account() {
    const before = this.gone.size - this.deleted;
    const left = this.ledgers.length - this.gone.size;
    const sentences = [`${ledgersInWords(this.deleted)} deleted${before ? `, ${count(before)} had gone before` : ""}.`];
    if (this.refusal) sentences.push(`Ledger ${this.refusal.ledgerId} was refused: ${this.refusal.text}.`);
    if (left) sentences.push(`${ledgersInWords(left)} ${left === 1 ? "is" : "are"} left, and still selected.`);
    return sentences.join(" ");
  }
}
