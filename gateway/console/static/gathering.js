// A page of a list that is searched for: the server looks at some thousand records a time, so one answer may be short of
// a full page though more of it are behind.

import { h } from "./dom.js";

export class Gathering {
  /**
   * `ask(next, limit)` gives `{found, examined, next}` of what is behind `next`, null at the end; `changed` is called
   * when there is something new to be shown.
   */
  constructor(next, rows, ask, changed) {
    Object.assign(this, { next, rows, ask, changed });
    this.found = [];
    this.examined = 0;
    this.answers = 0;
    this.problem = null;
    this.isRunning = false;
    this.isToStop = false;
  }

  /** Whether more may be found for this page. */
  get isShort() {
    return this.next !== null && this.found.length < this.rows;
  }

  /** Goes on until the page is full, somebody stops it, or the server refuses: what was found stays. Throws the refusal of the first answer. */
  async run() {
    Object.assign(this, { isRunning: true, isToStop: false, problem: null });
    try {
      do {
        const { found, examined, next } = await this.ask(this.next, this.rows - this.found.length);
        this.found.push(...found);
        this.examined += examined;
        this.answers += 1;
        this.next = next;
        if (this.isShort && !this.isToStop) this.changed();
      } while (this.isShort && !this.isToStop);
    } catch (error) {
      if (error.name === "AbortError" || !this.answers) throw error;
      this.problem = error.message;
    } finally {
      this.isRunning = false;
    }
    this.changed();
  }

  /** The answer that is on its way is still taken. */
  stop() {
    this.isToStop = true;
    this.changed();
  }

  /** The button that stops it, or has it go on where it `mayGoOn`. */
  control(goOn, mayGoOn = this.isShort) {
    if (this.isRunning) return h("button", { class: "small", "data-key": "stop", disabled: this.isToStop, onclick: () => this.stop() }, "Stop");
    return mayGoOn ? h("button", { class: "small", "data-key": "go-on", onclick: goOn }, "Go on") : null;
  }
}
