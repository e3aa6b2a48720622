// Lines over the last two minutes, drawn by uPlot.

import { find, make, setText } from "./dom.js";

const SHOWN_S = 120;
const HEIGHT = 168;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** `series` are {title, color (of style.css), value(live)}; `format` turns a value into text. */
export class Chart {
  constructor(id, series, format) {
    this.box = find(`#${id}`);
    this.series = series;
    this.format = format;
    this.rows = [];
    this.plot = new uPlot(this.options(), this.data(), this.box);
    this.key = this.makeKey();
    new ResizeObserver(() => this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT })).observe(this.box);
  }

  add(live) {
    const now = live.taken_unix_ms / 1000;
    this.rows.push([now, ...this.series.map((s) => s.value(live) ?? null)]);
    this.rows = this.rows.filter(([at]) => at > now - SHOWN_S - 2);
    this.plot.setData(this.data());
    this.tell(this.rows.at(-1).slice(1));
  }

  redraw() {
    this.plot.redraw(false);
  }

  data() {
    const now = this.rows.at(-1)?.[0] ?? 0;
    return [this.rows.map(([at]) => at - now), ...this.series.map((_, i) => this.rows.map((row) => row[i + 1]))];
  }

  tell(values) {
    this.series.forEach((_, i) => setText(this.key[i], this.format(values[i])));
  }

  makeKey() {
    const values = this.series.map(() => make("b", {}, "–"));
    const place = find(".key", this.box.parentElement);
    this.series.forEach((s, i) => {
      const dot = make("i", { style: { background: `var(${s.color})` } });
      place.append(make("span", {}, dot, `${s.title} `, values[i]));
    });
    return values;
  }

  options() {
    const axis = { stroke: () => css("--muted"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: () => css("--line"), width: 1 };
    return {
      width: this.box.clientWidth || 300,
      height: HEIGHT,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { x: { time: false, range: [-SHOWN_S, 0] }, y: { range: (_, __, top) => [0, top > 0 ? top * 1.15 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: 60, values: (_, ticks) => ticks.map((t) => (t ? `${-t} s ago` : "now")) },
        { ...axis, grid, size: 52, space: 36, values: (_, ticks) => ticks.map(this.format) },
      ],
      series: [{}, ...this.series.map((s) => this.line(s))],
      hooks: { setCursor: [(plot) => this.pointed(plot.cursor.idx)] },
    };
  }

  line(series) {
    return {
      stroke: () => css(series.color),
      fill: series.fill ? () => `color-mix(in srgb, ${css(series.color)} 12%, transparent)` : undefined,
      width: 1.6,
      points: { show: false },
      spanGaps: false,
    };
  }

  /** While the pointer is on the chart the key shows the values there. */
  pointed(index) {
    const row = index == null ? this.rows.at(-1) : this.rows[index];
    if (row) this.tell(row.slice(1));
  }
}
