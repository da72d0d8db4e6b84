// Live rates: of the whole cluster, of each bookie beside the others, or of one server; ten minutes, two seconds a point.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { link } from "./routes.js";

const POLL_MS = 2000;
const BIN_MS = 2000;

/** How values of several bookies become one: latencies are those of the slowest, everything else is summed. */
const together = { ms: (values) => Math.max(...values), other: (values) => values.reduce((sum, value) => sum + value, 0) };

export function ratesView(root, context) {
  const chosen = context.query.get("of") ?? "cluster";
  const note = h("p", { class: "note" });
  const choice = h("div", { class: "choice" });
  const grid = h("div", { class: "charts" });
  const problem = h("div");
  root.append(h("h1", { class: "hidden" }, "Rates"), h("div", { class: "rates-head" }, choice, note), problem, grid);
  const known = new Known();
  const drawn = new Drawn(grid);
  let alone = false;
  context.onCluster(({ server }) => {
    alone = !server.features.includes("peers");
    if (alone) note.textContent = "What this gateway does, in the last ten minutes.";
  });
  context.signal.addEventListener("abort", () => drawn.close());
  context.every(POLL_MS, async () => {
    try {
      if (alone) known.take({ [""]: await get("/rates", { since: known.last() }, context.signal) });
      else known.take((await get("/cluster_rates", { since: known.last() }, context.signal)).bookies);
      problem.replaceChildren();
      if (!alone) drawChoice(choice, note, known, chosen);
      drawn.draw(known.charts(alone ? "" : chosen));
    } catch (error) {
      context.failed(problem, error);
    }
  });
}

function drawChoice(choice, note, known, chosen) {
  const names = [["cluster", "Whole cluster"], ["bookies", "Bookie by bookie"], ...known.names().map((name) => [name, name])];
  const select = h(
    "select",
    { "aria-label": "Rates of", onchange: (event) => (location.hash = link("rates", { of: event.target.value })) },
    names.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
  if (choice.textContent !== select.textContent) choice.replaceChildren(select);
  const silent = known.silent();
  const what = { cluster: "All bookies together; latencies are those of the slowest.", bookies: "Each bookie has a line." }[chosen] ?? `What ${chosen} does.`;
  note.textContent = `${what} Ten minutes, drag to zoom.${silent.length ? ` No answer from ${silent.join(", ")}.` : ""}`;
}

/** What the bookies have told so far, in bins of two seconds. */
export class Known {
  constructor() {
    this.of = new Map();
  }

  /** Behind this time a poll asks; bookies' clocks may differ a little, so a little is asked for again. */
  last() {
    const ends = [...this.of.values()].filter((one) => one.answers).map((one) => one.times.at(-1) ?? 0);
    return ends.length ? Math.max(0, Math.min(...ends) - BIN_MS) : 0;
  }

  names() {
    return [...this.of.keys()].sort();
  }

  silent() {
    return this.names().filter((name) => !this.of.get(name).answers);
  }

  take(bookies) {
    for (const [name, answer] of Object.entries(bookies)) {
      const one = this.of.get(name) ?? { charts: [], points: new Map(), times: [], keptMs: 0 };
      one.answers = answer !== null;
      this.of.set(name, one);
      if (!answer) continue;
      one.charts = answer.charts;
      one.keptMs = answer.keptSeconds * 1000;
      for (const [at, ...values] of answer.points) one.points.set(Math.round(at / BIN_MS) * BIN_MS, values);
      forget(one, Math.max(...one.points.keys()));
    }
    for (const [name, one] of this.of) one.answers = one.answers && name in bookies;
    // Those that are away do not tell that time goes on.
    const end = this.end();
    if (end < Infinity) this.of.forEach((one) => forget(one, end));
  }

  /** Up to when all that answer have told: what some have not told yet would look like less. */
  end() {
    const ends = [...this.of.values()].filter((one) => one.answers && one.times.length).map((one) => one.times.at(-1));
    return ends.length ? Math.min(...ends) : Infinity;
  }

  /** What is to be drawn: charts with their times and columns. */
  charts(chosen) {
    if (this.of.has(chosen)) return described(this.of.get(chosen));
    const all = [...this.of.entries()].filter(([, one]) => one.charts.length).sort(([a], [b]) => (a < b ? -1 : 1));
    if (!all.length) return [];
    const end = this.end();
    const times = [...new Set(all.flatMap(([, one]) => one.times))].filter((at) => at <= end).sort((a, b) => a - b);
    const kinds = all[0][1].charts;
    if (chosen === "bookies") {
      return kinds.flatMap((chart) =>
        chart.series.map((series) => ({
          title: chart.series.length > 1 ? `${chart.title}: ${series.label}` : chart.title,
          unit: chart.unit,
          times,
          series: all.map(([name]) => ({ label: name })),
          columns: all.map(([, one]) => times.map((at) => one.points.get(at)?.[placeOf(one, series.name)] ?? null)),
        })),
      );
    }
    return kinds.map((chart) => ({
      title: chart.title,
      unit: chart.unit,
      times,
      series: chart.series,
      columns: chart.series.map((series) => {
        const join = together[chart.unit] ?? together.other;
        return times.map((at) => {
          const values = all.map(([, one]) => one.points.get(at)?.[placeOf(one, series.name)]).filter((value) => value !== null && value !== undefined);
          return values.length ? join(values) : null;
        });
      }),
    }));
  }
}

/** Drops what is older, at this time, than a bookie keeps itself. */
function forget(one, now) {
  for (const at of one.points.keys()) if (at < now - one.keptMs) one.points.delete(at);
  one.times = [...one.points.keys()].sort((a, b) => a - b);
}

/** Where a series' value stands in a point. */
function placeOf(one, name) {
  return one.charts.flatMap((chart) => chart.series).findIndex((series) => series.name === name);
}

function described(one) {
  let first = 0;
  return one.charts.map((chart) => {
    const columns = chart.series.map((_, index) => one.times.map((at) => one.points.get(at)[first + index] ?? null));
    first += chart.series.length;
    return { ...chart, times: one.times, columns };
  });
}

/** Charts on the page: made once, and again where what is drawn is another. */
export class Drawn {
  constructor(place) {
    Object.assign(this, { place, made: "", charts: [] });
  }

  draw(wanted) {
    const shape = JSON.stringify(wanted.map(({ title, series }) => [title, series.map((one) => one.label)]));
    if (shape !== this.made) {
      this.close();
      this.charts = wanted.map((one) => new Chart(one));
      this.place.replaceChildren(...this.charts.map((chart) => chart.element));
      this.made = shape;
    }
    wanted.forEach((one, index) => this.charts[index].update(one.times, one.columns));
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}
