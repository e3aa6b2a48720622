// Asks for what is live once a second and shows it; everything else follows from that.

import { call } from "./api.js";
import { Chart } from "./charts.js";
import { find, setText } from "./dom.js";
import { ms, number, seconds } from "./format.js";
import { governance } from "./governance.js";
import { Heat } from "./heat.js";
import * as panels from "./panels.js";
import { Session } from "./session.js";
import { Topology } from "./topology.js";
import { Waterfall } from "./waterfall.js";

const PERIOD_MS = 1000;

const charts = [
  new Chart("chart-requests", [
    { title: "answered", color: "--accent", fill: true, value: (l) => l.traffic.outcomes_per_s.OK },
    { title: "failed", color: "--bad", value: failed },
  ], number),
  new Chart("chart-latency", [
    { title: "p50", color: "--accent", value: (l) => l.traffic.p50_ms },
    { title: "p99", color: "--violet", value: (l) => l.traffic.p99_ms },
  ], ms),
  new Chart("chart-queues", [
    { title: "requests", color: "--warn-fill", value: (l) => l.queues.front_requests },
    { title: "batches", color: "--violet", value: (l) => l.queues.pending_batches },
    { title: "running", color: "--executor", value: (l) => l.queues.in_flight_batches },
  ], number),
];
const topology = new Topology();
const heat = new Heat();
const session = new Session(() => refresh());
const waterfall = new Waterfall(() => {}); // when the dispatcher is away, `refresh` says so
let revision = null;
let answeredAt = Date.now();

function failed({ traffic }) {
  const { OK, ...others } = traffic.outcomes_per_s;
  return traffic.requests_per_s == null ? null : Object.values(others).reduce((a, b) => a + b, 0);
}

async function refresh() {
  try {
    const live = await call("/v1/live");
    show(live);
    if (live.topology_revision !== revision) {
      topology.setHosts((await call("/v1/topology")).hosts);
      revision = live.topology_revision;
    }
    answeredAt = Date.now();
    trouble(null);
  } catch (refused) {
    if (refused.status === undefined) throw refused; // a fault of ours
    trouble(refused);
  }
}

function show(live) {
  panels.facts(live);
  panels.figures(live);
  panels.executors(live);
  panels.fronts(live);
  panels.models(live);
  panels.tenants(live);
  panels.batching(live);
  governance(live);
  charts.forEach((chart) => chart.add(live));
  topology.setExecutors(live.state.executors, live.moved);
  heat.add(live.state.executors);
  session.show(live);
  const up = seconds(Math.max(0, live.taken_unix_ms - live.state.started_unix_ms) / 1000);
  setText(find("#about"), `Dispatcher ${live.state.version}, up ${up}. Rates over the last ${seconds(live.window_s)}, as this dispatcher sees them.`);
}

function trouble(refused) {
  const place = find("#trouble");
  document.body.classList.toggle("stale", refused !== null);
  place.hidden = refused === null;
  if (refused === null) return;
  if (refused.status === 401) session.askOnce();
  const since = Math.round((Date.now() - answeredAt) / 1000);
  setText(place, `${refused.message} (${refused.advice}). What you see is ${since} s old.`);
}

async function run() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  charts.forEach((chart) => chart.redraw());
  heat.redraw();
});
run();
waterfall.run();
