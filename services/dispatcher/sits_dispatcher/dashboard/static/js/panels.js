// Everything on the page that is a number, a table or a bar.

import { find, make, reconcile, setClass, setText, table } from "./dom.js";
import { bytesRate, cut, ms, number, percent, seconds, shortId } from "./format.js";

const REASONS = {
  idle: ["an instance was free", "waiting would have gained nothing"],
  rows: ["full of rows", "the model's row limit was reached"],
  requests: ["enough requests", "SITS_PREPROCESS_BATCH_CLOSE_REQUESTS was reached"],
  bytes: ["enough bytes", "SITS_PREPROCESS_BATCH_CLOSE_BYTES was reached"],
  window: ["waited long enough", "the batch window was over"],
  urgent: ["urgent", "a request of the highest priority came"],
  deadline: ["a deadline", "the earliest deadline needed it"],
  unbatched: ["not batched", "the model takes one request at a time"],
};
const FRESH_S = 15; // what Redis keeps a topology for

export function facts(live) {
  const { state } = live;
  const age = state.topology_age_s;
  const items = [
    { id: "redis", ...redisFact(state.redis) },
    age == null ? { id: "topology", text: "No topology yet", tone: "warn" }
      : { id: "topology", text: `Topology ${age < 90 ? `${age.toFixed(1)} s` : seconds(age)} old`, tone: age > FRESH_S ? "bad" : "good" },
    counted("executors", state.executors.length, "executor"),
    counted("fronts", state.fronts.length, "front door"),
  ];
  if (live.silent_fronts.length) {
    items.push({ id: "silent", text: `No figures from ${live.silent_fronts.join(", ")}`, tone: "bad" });
  }
  reconcile(find("#facts"), items, (item) => item.id, () => make("li"), (li, item) => {
    setText(li, item.text);
    setClass(li, item.tone);
  });
}

function redisFact({ configured, connected, age_s }) {
  if (!configured) return { text: "No Redis", tone: "muted" };
  if (connected) return { text: `Redis seen ${age_s.toFixed(1)} s ago`, tone: "good" };
  return { text: age_s == null ? "Redis never answered" : `Redis lost ${seconds(age_s)} ago`, tone: "bad" };
}

function counted(id, count, name) {
  return { id, text: `${count} ${name}${count === 1 ? "" : "s"}`, tone: count ? "good" : "bad" };
}

export function figures({ traffic, queues, batching }) {
  const failed = Object.entries(traffic.outcomes_per_s).filter(([outcome]) => outcome !== "OK");
  const errors = traffic.requests_per_s == null ? null : failed.reduce((sum, [, rate]) => sum + rate, 0);
  const worst = failed.sort((a, b) => b[1] - a[1])[0];
  const items = [
    { title: "Requests a second", value: number(traffic.requests_per_s), note: `${number(traffic.rows_per_s)} rows` },
    { title: "Half within", value: ms(traffic.p50_ms), note: "p50" },
    { title: "99 % within", value: ms(traffic.p99_ms), note: "p99" },
    { title: "Failed a second", value: number(errors), note: worst?.[1] > 0 ? worst[0].toLowerCase().replaceAll("_", " ") : "none", tone: errors > 0 ? "bad" : "" },
    { title: "Waiting", value: number(queues.front_requests), note: `${number(queues.pending_batches)} batches at the dispatcher` },
    { title: "Running", value: number(queues.in_flight_batches), note: `batches of ${number(batching.rows_per_batch)} rows` },
  ];
  reconcile(find("#figures"), items, (item) => item.title, figure, (box, item) => {
    setText(find("dd", box), item.value);
    setText(find("small", box), item.note);
    setClass(box, item.tone ?? "");
  });
}

function figure({ title }) {
  return make("div", {}, make("dt", {}, title), make("dd"), make("small"));
}

export function executors(live) {
  const columns = [
    { title: "Executor", cell: (e) => ({ text: cut(shortId(e.id), 22), title: `${e.id} at ${e.address}` }) },
    { title: "Device", cell: (e) => ({ text: cut(e.device || "–", 18), title: e.device }) },
    { title: "Load", cell: load },
    { title: "Rows", number: true, wide: true, cell: (e) => number(e.rows_in_flight) },
    { title: "Batches/s", number: true, cell: (e) => number(live.answered_per_s[e.id]) },
    { title: "Tensors", number: true, wide: true, cell: (e) => ({ text: bytesRate(bytesOf(live.moved, e)), title: "moved between requests and this executor, both ways" }) },
    { title: "Transport", wide: true, cell: (e) => e.transport },
    { title: "State", cell: (e) => (e.draining ? { text: "draining", tone: "warn" } : { text: "ready", tone: "good" }) },
  ];
  table(find("#executors table"), columns, live.state.executors, (e) => e.id, "No executor is linked: is one running, with the same Redis?");
}

export function bytesOf(moved, executor) {
  return moved.filter((way) => way.executor === executor.id).reduce((sum, way) => sum + way.bytes_per_s, 0);
}

function load(executor) {
  const part = executor.parallel ? executor.batches_in_flight / executor.parallel : 0;
  return { text: `${executor.batches_in_flight} / ${executor.parallel}`, bar: part, tone: part > 1 ? "over" : "" };
}

export function fronts({ state, silent_fronts }) {
  const columns = [
    { title: "Front door", cell: (f) => ({ text: cut(shortId(f.id), 22), title: f.id }) },
    { title: "Control at", cell: (f) => f.address },
    { title: "Transport", wide: true, cell: (f) => f.transport },
    { title: "Figures", cell: (f) => (silent_fronts.includes(f.address) ? { text: "no answer", tone: "bad" } : { text: "told", tone: "good" }) },
  ];
  table(find("#fronts table"), columns, state.fronts, (f) => f.id, "No front door is linked.");
}

export function models(live) {
  const rates = new Map(live.models.map((rate) => [rate.model, rate]));
  const columns = [
    { title: "Model", cell: (m) => ({ text: cut(m.name, 28), title: m.name }) },
    { title: "Version", number: true, cell: (m) => m.version },
    { title: "State", cell: (m) => ({ text: m.state, tone: { ready: "good", loading: "warn", unloading: "warn" }[m.state] ?? "bad", title: m.reason }) },
    { title: "Strategy", wide: true, cell: (m) => m.strategy },
    { title: "Batches/s", number: true, wide: true, cell: (m) => number(rates.get(m.name)?.batches_per_s) },
    { title: "Rows/s", number: true, cell: (m) => number(rates.get(m.name)?.rows_per_s) },
  ];
  table(find("#models table"), columns, live.state.models, (m) => `${m.name}/${m.version}`, "No executor has a model.");
}

export function tenants(live) {
  const columns = [
    { title: "Tenant", cell: (t) => cut(t.tenant, 20) },
    { title: "Requests/s", number: true, cell: (t) => number(t.requests_per_s) },
    { title: "p50", number: true, wide: true, cell: (t) => ms(t.p50_ms) },
    { title: "p99", number: true, cell: (t) => ms(t.p99_ms) },
    { title: "Objective", number: true, wide: true, cell: (t) => ms(t.slo_ms) },
    { title: "In time", cell: inTime },
    { title: "Failed/s", number: true, wide: true, cell: (t) => ({ text: number(t.failed_per_s), tone: t.failed_per_s > 0 ? "bad" : "" }) },
  ];
  table(find("#tenants table"), columns, live.tenants, (t) => t.tenant, "No request in the last minute.");
}

function inTime(tenant) {
  if (tenant.in_slo == null) return { text: "–", bar: 0, tone: "muted" };
  const tone = tenant.in_slo >= 0.99 ? "good" : tenant.in_slo >= 0.95 ? "warn" : "bad";
  return { text: percent(tenant.in_slo), bar: tenant.in_slo, tone, title: `answered rightly within ${ms(tenant.slo_ms)}` };
}

export function batching({ batching: { reasons, rows_per_batch } }) {
  const total = reasons.reduce((sum, reason) => sum + reason.total, 0);
  const shown = reasons.filter((reason) => reason.total > 0).sort((a, b) => b.total - a.total);
  setText(find("#batching .hint"), total ? `${number(total)} batches, ${number(rows_per_batch)} rows each now` : "no batch yet");
  reconcile(find("#batching .bars"), shown, (reason) => reason.reason, reasonBar, (li, reason) => {
    const share = reason.total / total;
    find("i", li).style.width = `${Math.max(0.5, 100 * share)}%`;
    setText(li.children[2], percent(share));
    setText(li.children[3], `${number(reason.per_s)}/s`);
  });
}

function reasonBar({ reason }) {
  const [name, why] = REASONS[reason] ?? [reason, ""];
  return make("li", { title: why }, make("span", {}, name), make("span", { class: "track" }, make("i")), make("span", { class: "number" }), make("span", { class: "number muted" }));
}
