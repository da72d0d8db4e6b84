// A chart over time, drawn by uPlot: values where the pointer is, a range dragged over is zoomed into, a double click
// shows all again. Charts of one view share their cursor. Colours are those of the style sheet, light or dark.

import { h } from "./dom.js";
import { measured } from "./format.js";

const HEIGHT = 170;
const { uPlot } = window;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Of the series of this number: the four of the style sheet, then others around the wheel. */
export function lineColour(index) {
  return index < 4 ? colour(`--s${index}`) : `hsl(${(index * 67 + 20) % 360} 55% 52%)`;
}

/** One chart of series of one unit. `update(times, columns)` draws anew: times in ms, a column of values a series. */
export class Chart {
  constructor({ title, unit, series }) {
    Object.assign(this, { unit, series, times: [], columns: [] });
    this.values = series.map(() => h("b", null, "–"));
    this.keys = series.map((one, index) => h("span", { class: "key" }, h("i"), one.label, " ", this.values[index]));
    this.at = h("span", { class: "time" });
    this.frame = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart" }, h("figcaption", null, title, this.at), this.frame, h("div", { class: "legend" }, this.keys));
    this.zoomed = false;
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.make();
    this.scheme.addEventListener("change", this.recolour);
    this.resizing = new ResizeObserver(([entry]) => this.plot?.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT }));
    this.resizing.observe(this.frame);
  }

  make() {
    this.plot?.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const lines = this.series.map((one, index) => {
      const stroke = lineColour(index);
      this.keys[index].firstChild.style.background = stroke;
      return { label: one.label, stroke, width: 1.6, points: { size: 4 }, fill: index === 0 && one.name ? `color-mix(in srgb, ${stroke} 13%, transparent)` : undefined };
    });
    const options = {
      width: Math.max(200, Math.floor(this.frame.clientWidth)),
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "charts" }, y: false },
      ms: 1,
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      series: [{}, ...lines],
      axes: [{ ...axis, space: 80, values: (_plot, marks) => marks.map((mark) => new Date(mark).toLocaleTimeString("en-GB")) }, { ...axis, size: 70, values: (_plot, marks) => marks.map((mark) => measured(mark, this.unit)) }],
      hooks: {
        setCursor: [(plot) => this.show(plot.cursor.idx)],
        setSelect: [(plot) => (this.zoomed = plot.select.width > 0)],
      },
    };
    this.plot = new uPlot(options, [this.times, ...this.columns], this.frame);
    this.plot.over.addEventListener("dblclick", () => {
      this.zoomed = false;
      this.plot.setData([this.times, ...this.columns]);
    });
  }

  update(times, columns) {
    Object.assign(this, { times, columns });
    if (!this.frame.isConnected) return;
    if (!this.plot) this.make();
    this.plot.setData([times, ...columns], !this.zoomed);
    if (this.plot.cursor.idx === null || this.plot.cursor.left < 0) this.show(null);
  }

  show(index) {
    const place = index ?? this.times.length - 1;
    this.at.textContent = index === null || index === undefined ? "" : new Date(this.times[index]).toLocaleTimeString("en-GB");
    this.values.forEach((value, number) => {
      value.textContent = measured(this.columns[number]?.[place], this.unit);
    });
  }

  close() {
    this.scheme.removeEventListener("change", this.recolour);
    this.resizing.disconnect();
    this.plot?.destroy();
  }
}
