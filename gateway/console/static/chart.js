// A small chart over time: lines over a filled first one, a grid of three lines, values where the pointer is.

import { h, s } from "./dom.js";
import { measured, span } from "./format.js";

const WIDTH = 400;
const HEIGHT = 120;

/** The next round number at or above: 1, 2, 2.5 or 5 times a power of ten (of two, for bytes). */
export function ceiling(value, unit) {
  if (value <= 0) return 1;
  if (unit.startsWith("bytes")) return 2 ** Math.ceil(Math.log2(Math.max(value, 1024)));
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 2.5, 5, 10].find((each) => value <= each * power * 1.0001);
  return Math.max(step * power, unit === "ms" ? 0.1 : 1);
}

/** Pieces of a line between gaps: arrays of [x, y]. */
function pieces(points, index, x, y) {
  const found = [];
  let current = [];
  for (const point of points) {
    if (point[index] === null) {
      if (current.length) found.push(current);
      current = [];
    } else {
      current.push([x(point[0]), y(point[index])]);
    }
  }
  if (current.length) found.push(current);
  return found;
}

function path(piece) {
  // A single value between two gaps is a short stroke, or it would not be seen.
  const points = piece.length > 1 ? piece : [[piece[0][0] - 1, piece[0][1]], [piece[0][0] + 1, piece[0][1]]];
  return `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
}

/** One chart. `update(points, first, from, to)` draws anew: values of its series begin at index `first` of a point. */
export class Chart {
  constructor(described) {
    this.described = described;
    this.plot = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.cursor = h("div", { class: "cursor", hidden: true });
    this.top = h("span", { class: "top" });
    this.time = h("span", { class: "time" });
    this.values = described.series.map(() => h("b", null, "–"));
    const legend = described.series.map((series, index) =>
      h("span", { class: "key" }, h("i", { class: `s${index}` }), series.label, " ", this.values[index]),
    );
    this.begin = h("span");
    this.frame = h("div", { class: "frame" }, this.plot, this.cursor, this.top, this.time);
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", null, described.title),
      this.frame,
      h("div", { class: "axis", "aria-hidden": "true" }, this.begin, h("span", null, "now")),
      h("div", { class: "legend" }, legend),
    );
    this.frame.addEventListener("pointermove", (event) => this.point(event));
    this.frame.addEventListener("pointerleave", () => this.leave());
  }

  update(points, first, from, to) {
    Object.assign(this, { points, first, from, to });
    const { unit, series } = this.described;
    const values = points.flatMap((point) => point.slice(first, first + series.length)).filter((value) => value !== null);
    const top = ceiling(Math.max(0, ...values), unit);
    const x = (at) => ((at - from) / (to - from)) * WIDTH;
    const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 8);
    const drawn = [0.25, 0.5, 0.75].map((part) =>
      s("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(part * top), y2: y(part * top) }),
    );
    series.forEach((_, index) => {
      for (const piece of pieces(points, first + index, x, y)) {
        if (index === 0 && piece.length > 1) {
          const end = piece[piece.length - 1][0];
          drawn.push(s("path", { class: "area s0", d: `${path(piece)}L${end.toFixed(1)} ${HEIGHT}L${piece[0][0].toFixed(1)} ${HEIGHT}Z` }));
        }
        drawn.push(s("path", { class: `line s${index}`, d: path(piece) }));
      }
    });
    this.plot.replaceChildren(...drawn);
    this.top.textContent = measured(top, unit);
    this.begin.textContent = `${span((to - from) / 1000)} ago`;
    if (this.cursor.hidden) this.show(points[points.length - 1]);
  }

  show(point) {
    this.values.forEach((value, index) => {
      value.textContent = point ? measured(point[this.first + index], this.described.unit) : "–";
    });
  }

  point(event) {
    if (!this.points?.length) return;
    const box = this.frame.getBoundingClientRect();
    const at = this.from + ((event.clientX - box.left) / box.width) * (this.to - this.from);
    const nearest = this.points.reduce((best, each) => (Math.abs(each[0] - at) < Math.abs(best[0] - at) ? each : best));
    this.cursor.hidden = false;
    this.cursor.style.left = `${((nearest[0] - this.from) / (this.to - this.from)) * 100}%`;
    this.time.textContent = new Date(nearest[0]).toLocaleTimeString("en-GB");
    this.show(nearest);
  }

  leave() {
    this.cursor.hidden = true;
    this.time.textContent = "";
    this.show(this.points?.[this.points.length - 1]);
  }
}
