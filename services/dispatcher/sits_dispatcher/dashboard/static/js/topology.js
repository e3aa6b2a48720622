// The topology: devices of each host with their links, and executors on their devices with live load.

import { bytesRate, cut, gigabytes, number, percent, shortId } from "./format.js";
import { find, make, setText, svg } from "./dom.js";
import { path, place } from "./layout.js";

// From nearest to farthest. What the mesh calls PIX to SYS are ways over PCIe.
const KINDS = {
  nvlink: "NVLink", c2c: "C2C", pix: "PCIe switch", pxb: "PCIe switches", phb: "PCIe, host bridge",
  node: "PCIe, NUMA node", sys: "between NUMA nodes", network: "network",
};
const MANY = 24; // links beyond which far ones are left out
const FEW = 4; // links up to which each says what it is

export class Topology {
  constructor() {
    this.graph = find("#graph");
    this.matrix = find("#matrix");
    this.hosts = [];
    this.executors = [];
    this.moved = [];
    this.shown = new Map(); // host → kinds of links that are drawn
    this.width = 0;
    for (const name of ["graph", "matrix"]) {
      find(`#tab-${name}`).addEventListener("click", () => this.choose(name));
    }
    new ResizeObserver(() => this.resized()).observe(find("#topology"));
  }

  choose(name) {
    for (const other of ["graph", "matrix"]) {
      find(`#tab-${other}`).setAttribute("aria-selected", String(other === name));
      find(`#${other}`).hidden = other !== name;
    }
    this.draw();
  }

  /** Not redrawn under somebody's pointer: the next topology comes in a few seconds. */
  setHosts(hosts) {
    this.hosts = hosts;
    if (!find(".pointed", this.graph)) this.draw();
  }

  /** Every second: only loads change, unless executors came or went. */
  setExecutors(executors, moved) {
    this.moved = moved;
    const same = this.executors.map(where).join() === executors.map(where).join();
    this.executors = executors;
    if (same) this.load();
    else this.draw();
  }

  resized() {
    const width = find("#topology").clientWidth;
    if (Math.abs(width - this.width) > 4) this.draw();
  }

  draw() {
    this.width = find("#topology").clientWidth;
    if (this.graph.hidden) this.matrix.replaceChildren(...this.hosts.map(affinity));
    else this.drawGraph();
  }

  drawGraph() {
    const blocks = this.hosts.map((host) => this.hostBlock(host));
    const lost = this.executors.filter((executor) => !this.deviceOf(executor));
    if (lost.length) blocks.push(homeless(lost));
    if (!this.hosts.length) blocks.unshift(make("p", { class: "empty" }, "No topology service has told of its devices yet."));
    this.graph.replaceChildren(...blocks);
    this.load();
  }

  deviceOf(executor) {
    const host = this.hosts.find((h) => h.host === executor.host);
    return host?.devices.find((device) => device.id === executor.device);
  }

  hostBlock(host) {
    const own = this.executors.filter((executor) => executor.host === host.host);
    const spot = place(host, own, Math.max(300, this.graph.clientWidth || this.width - 32));
    const links = drawable(host.links, spot);
    const kinds = this.kindsOf(host, links);
    const drawing = svg("svg", {
      viewBox: `0 0 ${spot.width} ${spot.height}`, role: "group", "aria-label": `Devices of ${host.node_name}`,
      class: links.length <= FEW ? "few" : "",
    });
    drawing.append(...links.map((l) => linkMark(l, spot, host, kinds.has(l.kind))));
    drawing.append(...spot.nodes.map((n) => deviceMark(n, spot, drawing)));
    drawing.append(...spot.nodes.flatMap((n) => n.pills.map((p) => pillMark(p, spot.sizes))));
    return make("div", { class: "host" }, hostHead(host), drawing, this.legend(host, links, kinds));
  }

  /** With many links the farthest are left out until somebody wants them. */
  kindsOf(host, links) {
    if (!this.shown.has(host.host)) {
      const all = new Set(links.map((l) => l.kind));
      const near = new Set([...all].filter((kind) => kind !== "sys" && kind !== "node"));
      this.shown.set(host.host, links.length > MANY && near.size ? near : all);
    }
    return this.shown.get(host.host);
  }

  legend(host, links, kinds) {
    const counts = new Map();
    for (const { kind } of links) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    const toggle = (kind) => {
      if (!kinds.delete(kind)) kinds.add(kind);
      this.draw();
    };
    const buttons = Object.keys(KINDS).filter((kind) => counts.has(kind)).map((kind) =>
      make("button", { type: "button", class: `kind ${kind}`, "aria-pressed": String(kinds.has(kind)), onclick: () => toggle(kind) },
        sample(kind), `${KINDS[kind]} `, make("span", {}, `× ${counts.get(kind)}`)));
    return make("div", { class: "legend" }, ...buttons);
  }

  load() {
    for (const executor of this.executors) {
      const pill = this.graph.querySelector(`[data-executor="${CSS.escape(executor.id)}"]`);
      if (pill) showLoad(pill, executor);
    }
    for (const way of this.graph.querySelectorAll(".way")) showTraffic(way, this.trafficOf(way.dataset));
  }

  /** Bytes a second of requests between a CPU's memory and the device of an executor. */
  trafficOf({ host, from, to }) {
    const over = ({ host: lies, numa_node: node, executor }) => {
      const runs = this.executors.find((e) => e.id === executor && e.host === host);
      const ends = runs && lies === host ? [`cpu:${node}`, runs.device] : [];
      return ends.includes(from) && ends.includes(to);
    };
    return this.moved.filter(over).reduce((sum, way) => sum + way.bytes_per_s, 0);
  }
}

const where = (executor) => `${executor.id}@${executor.host}/${executor.device}`;

function hostHead(host) {
  const facts = [`from ${host.sources.join(", ") || "nothing"}`, `${host.devices.length} devices`, `version ${host.version}`];
  return make("p", { class: "host-head" }, make("b", {}, host.node_name || host.host), ` ${facts.join(" · ")}`);
}

/** Each pair of devices once, with the affinity that was derived; no link where there is none. */
function drawable(links, spot) {
  const seen = new Map();
  for (const link of links) {
    if (link.knowledge === "absent" || link.kind === "self" || link.kind === "unspecified") continue;
    if (!spot.byId.has(link.from) || !spot.byId.has(link.to) || link.from === link.to) continue;
    const pair = [link.from, link.to].sort().join("\n");
    if (!seen.has(pair)) seen.set(pair, link);
  }
  const order = Object.keys(KINDS);
  return [...seen.values()].sort((a, b) => order.indexOf(b.kind) - order.indexOf(a.kind)); // near ones on top
}

function sample(kind) {
  return svg("svg", { width: 22, height: 8, "aria-hidden": "true" }, svg("path", { d: "M1,4H21", class: `link ${kind}` }));
}

/** One that is not `wanted` shows while requests use it. */
function linkMark(link, spot, host, wanted) {
  const way = path(spot.byId.get(link.from), spot.byId.get(link.to), spot);
  const parts = [KINDS[link.kind] ?? link.kind];
  if (link.lanes) parts.push(`${link.lanes} lane${link.lanes === 1 ? "" : "s"}`);
  if (link.bandwidth_gbps) parts.push(`${number(link.bandwidth_gbps)} GB/s${link.measured ? " measured" : ""}`);
  if (link.knowledge !== "known") parts.push(link.knowledge);
  const width = link.kind === "nvlink" ? Math.min(4.5, 1.2 + (link.lanes ?? 1) * 0.35) : null;
  const mark = svg("g", { class: wanted ? "way" : "way off", "data-host": host.host, "data-from": link.from, "data-to": link.to });
  mark.append(svg("path", { d: way.d, class: `link ${link.kind} ${link.knowledge}`, style: width ? { "stroke-width": `${width}px` } : {} }));
  mark.append(svg("text", { x: way.x, y: way.y - 3, class: "way-text" }, parts.slice(0, 2).join(", ")));
  mark.append(svg("text", { x: way.x, y: way.y + 9, class: "way-load" }));
  const title = `${link.from} – ${link.to}: ${parts.join(", ")}`;
  mark.append(svg("title", { "data-link": title }, title));
  return mark;
}

/** What requests move over a link now: said on it, and in its tooltip. */
function showTraffic(way, bytes) {
  const busy = bytes >= 500; // less rounds to nothing
  way.classList.toggle("busy", busy);
  setText(find(".way-load", way), busy ? bytesRate(bytes) : "");
  const title = find("title", way);
  setText(title, busy ? `${title.dataset.link}; requests move ${bytesRate(bytes)}` : title.dataset.link);
}

function deviceMark({ device, x, y }, { sizes, byId }, drawing) {
  const mark = svg("g", { class: `device ${device.kind} ${device.health}`, transform: `translate(${x},${y})`, tabindex: 0, role: "img" });
  const facts = deviceFacts(device);
  const busy = device.utilization ?? 0;
  mark.append(svg("title", {}, [device.name, ...facts.all].join("\n")));
  mark.append(svg("rect", { width: sizes.node, height: sizes.height, rx: 8, class: "box" }));
  mark.append(svg("rect", { width: sizes.node * busy, height: sizes.height, rx: 8, class: "busy" }));
  mark.append(svg("circle", { cx: 11, cy: 13, r: 3.5, class: "health" }));
  mark.append(svg("text", { x: 20, y: 16.5, class: "name" }, cut(deviceName(device), sizes.narrow ? 7 : 10)));
  mark.append(svg("text", { x: 11, y: 29, class: "fact" }, cut(facts.short, sizes.narrow ? 11 : 15)));
  const on = () => highlight(drawing, device.id, byId);
  const off = () => highlight(drawing, null, byId);
  for (const [event, act] of [["pointerenter", on], ["focus", on], ["pointerleave", off], ["blur", off]]) {
    mark.addEventListener(event, act);
  }
  return mark;
}

function deviceName(device) {
  if (device.kind === "gpu") return device.index == null ? "GPU" : `GPU ${device.index}`;
  if (device.kind === "cpu") return `CPU ${device.id.replace("cpu:", "")}`;
  return device.id.replace(/^(nic:|pci:|0000:)+/, "");
}

function deviceFacts(device) {
  const memory = device.memory_total_bytes == null ? null : `${gigabytes(device.memory_free_bytes)} of ${gigabytes(device.memory_total_bytes)} free`;
  const busy = device.utilization == null ? null : `${percent(device.utilization)} busy`;
  const numa = device.numa_node == null ? "NUMA unknown" : `NUMA ${device.numa_node}`;
  const health = device.health === "good" ? null : `${device.health}${device.health_reason ? `: ${device.health_reason}` : ""}`;
  const free = device.memory_free_bytes == null ? null : `${gigabytes(device.memory_free_bytes)} free`;
  const short = health ?? busy ?? free ?? (device.kind === "nic" ? "network" : numa);
  return { short, all: [device.id, numa, memory, busy, health].filter(Boolean) };
}

/** Links of one device stand out and say, at their other end, what they are; null = none does. */
function highlight(drawing, id, byId) {
  drawing.classList.toggle("pointed", id !== null);
  for (const way of drawing.querySelectorAll(".way")) {
    const { from, to } = way.dataset;
    way.classList.toggle("on", id === from || id === to);
    const other = byId.get(id === from ? to : from);
    const text = find("text", way);
    text.setAttribute("x", other.inner + (other.side === 0 ? 6 : -6));
    text.setAttribute("y", other.middle - 5);
    text.style.textAnchor = other.side === 0 ? "start" : "end";
  }
}

function pillMark({ executor, x, y }, sizes) {
  const mark = svg("g", { class: "pill", transform: `translate(${x},${y})`, "data-executor": executor.id, tabindex: 0, role: "img" });
  mark.append(svg("title"));
  mark.append(svg("rect", { width: sizes.pill, height: 22, rx: 11, class: "box" }));
  mark.append(svg("rect", { width: 0, height: 22, rx: 11, class: "load", "data-full": sizes.pill }));
  if (!sizes.narrow) mark.append(svg("text", { x: 11, y: 15, class: "name" }, cut(shortId(executor.id), 12)));
  mark.append(svg("text", { x: sizes.narrow ? sizes.pill / 2 : sizes.pill - 10, y: 15, class: sizes.narrow ? "count middle" : "count" }));
  return mark;
}

function showLoad(pill, executor) {
  const load = executor.parallel ? executor.batches_in_flight / executor.parallel : 0;
  const bar = find(".load", pill);
  const full = Number(bar.dataset.full);
  const width = load > 0 ? Math.max(22, Math.min(1, load) * full) : 0; // narrower than tall looks broken
  if (bar.getAttribute("width") !== String(width)) bar.setAttribute("width", width);
  pill.classList.toggle("over", load > 1);
  pill.classList.toggle("draining", executor.draining);
  setText(find(".count", pill), `${executor.batches_in_flight}/${executor.parallel}`);
  const state = executor.draining ? ", draining" : "";
  setText(find("title", pill), `${executor.id}${state}\n${executor.batches_in_flight} batches there, ${executor.parallel} run at once\n${executor.rows_in_flight} rows`);
}

function homeless(executors) {
  const names = executors.map((e) => `${shortId(e.id)} (${e.device || "no device"})`).join(", ");
  return make("p", { class: "hint" }, `On devices that no topology service has told of: ${names}.`);
}

function affinity(host) {
  const weights = new Map(host.weights.map((w) => [`${w.from}\n${w.to}`, w.weight]));
  const ids = host.devices.map((device) => device.id);
  const names = new Map(host.devices.map((device) => [device.id, deviceName(device)]));
  const head = make("tr", {}, make("th", { scope: "col" }, "from \\ to"), ...ids.map((id) => make("th", { scope: "col" }, names.get(id))));
  const rows = ids.map((from) => make("tr", {}, make("th", { scope: "row" }, names.get(from)), ...ids.map((to) => weightCell(weights.get(`${from}\n${to}`)))));
  const grid = make("table", { class: "affinity" }, make("thead", {}, head), make("tbody", {}, ...rows));
  const hint = make("p", { class: "hint" }, "1 = as near as the device itself, towards 0 = far. Placement weighs executors by these.");
  return make("div", { class: "host" }, hostHead(host), make("div", { class: "scroll" }, grid), hint);
}

function weightCell(weight) {
  if (weight == null) return make("td", { class: "unknown", title: "not known" }, "?");
  return make("td", { style: { "--part": `${Math.round(45 * weight)}%` } }, weight.toFixed(2));
}

