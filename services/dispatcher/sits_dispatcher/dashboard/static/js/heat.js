// Load of each executor over the last two minutes: one line each, one cell a second.

import { find, make, reconcile, setText } from "./dom.js";
import { cut, shortId } from "./format.js";

const CELLS = 120;
const LINE = 16;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Heat {
  constructor() {
    this.box = find("#heat");
    this.loads = new Map(); // executor → loads, newest last; undefined = was not there
    new ResizeObserver(() => this.redraw()).observe(this.box);
  }

  add(executors) {
    const now = new Map(executors.map((e) => [e.id, e.parallel ? e.batches_in_flight / e.parallel : 0]));
    for (const id of now.keys()) if (!this.loads.has(id)) this.loads.set(id, []);
    for (const [id, loads] of this.loads) {
      loads.push(now.get(id));
      if (loads.length > CELLS) loads.shift();
      if (loads.every((load) => load === undefined)) this.loads.delete(id);
    }
    this.redraw();
  }

  redraw() {
    const lines = [...this.loads.entries()];
    reconcile(this.box, lines, ([id]) => id, heatLine, (line, [id, loads]) => paint(line, id, loads));
  }
}

function heatLine([id]) {
  return make("div", { class: "heat-line", title: id }, make("span", {}, cut(shortId(id), 16)), make("canvas", { height: LINE }), make("span", { class: "number" }));
}

function paint(line, id, loads) {
  const canvas = find("canvas", line);
  const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
  const height = LINE * devicePixelRatio;
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  const cell = width / CELLS;
  loads.forEach((load, i) => {
    if (load === undefined) return;
    pen.fillStyle = css(load > 1 ? "--warn-fill" : "--accent");
    pen.globalAlpha = load > 1 ? 0.9 : 0.08 + 0.82 * load;
    const x = width - (loads.length - i) * cell;
    pen.fillRect(x, 0, Math.max(1, cell - devicePixelRatio * 0.6), height);
  });
  const present = loads.filter((load) => load !== undefined);
  setText(line.lastChild, present.length ? (present.reduce((a, b) => a + b, 0) / present.length).toFixed(1) : "–");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `load of ${id}, on average ${line.lastChild.textContent}`);
}
