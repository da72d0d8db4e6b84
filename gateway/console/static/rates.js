// Live rates of this server: a chart for each group of numbers, over ten minutes, two seconds a point.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h } from "./dom.js";

const POLL_MS = 2000;
const SHORTEST_MS = 120_000;

export function ratesView(root, context) {
  const note = h("p", { class: "note" });
  const grid = h("div", { class: "charts" });
  const problem = h("div");
  root.append(h("h1", { class: "hidden" }, "Rates"), note, problem, grid);
  let charts = null;
  let points = [];
  context.onCluster(({ server }) => {
    const who = server.kind === "bookie" ? server.name : "this gateway";
    note.textContent = `What ${who} does, in the last ten minutes. Other bookies have a console of their own.`;
  });
  context.every(POLL_MS, async () => {
    try {
      const last = points[points.length - 1]?.[0] ?? 0;
      const answer = await get("/rates", { since: last }, context.signal);
      if (charts === null) {
        charts = answer.charts.map((described) => new Chart(described));
        grid.replaceChildren(...charts.map((chart) => chart.element));
      }
      const to = answer.points[answer.points.length - 1]?.[0] ?? last;
      const all = [...points, ...answer.points];
      points = all.filter(([at]) => at >= to - answer.keptSeconds * 1000);
      const from = Math.min(points[0]?.[0] ?? to, to - SHORTEST_MS);
      problem.replaceChildren();
      let first = 1;
      for (const chart of charts) {
        chart.update(points, first, from, to);
        first += chart.described.series.length;
      }
    } catch (error) {
      context.failed(problem, error);
    }
  });
}
