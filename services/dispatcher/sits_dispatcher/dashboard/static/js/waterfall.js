// The stages of one traced request, on one axis.

import { call } from "./api.js";
import { ms, seconds } from "./format.js";
import { find, make } from "./dom.js";

const NEWEST = "";
const PERIOD_MS = 5000;
const SHOWN = 20;

export class Waterfall {
  constructor(trouble) {
    this.list = find("#requests");
    this.stages = find("#stages");
    this.attributes = find("#attributes");
    this.trouble = trouble;
    this.drawn = null;
    this.list.append(make("option", { value: NEWEST }, "Newest"));
    this.list.addEventListener("change", () => this.refresh());
  }

  /** For ever; a request that somebody chose stays. */
  async run() {
    for (;;) {
      if (!document.hidden) await this.refresh();
      await new Promise((done) => setTimeout(done, PERIOD_MS));
    }
  }

  async refresh() {
    try {
      const { requests } = await call("/v1/traces", { query: { limit: SHOWN } });
      this.offer(requests);
      const wanted = this.list.value || requests[0]?.trace_id;
      if (!wanted) this.empty();
      else if (wanted !== this.drawn) this.draw(await call(`/v1/traces/${wanted}`));
    } catch (refused) {
      this.trouble(refused);
    }
  }

  offer(requests) {
    const chosen = this.list.value;
    const options = requests.map((r) => make("option", { value: r.trace_id }, requestName(r)));
    if (chosen && !requests.some((r) => r.trace_id === chosen)) {
      options.push(make("option", { value: chosen }, `${chosen.slice(0, 8)}…`));
    }
    if (document.activeElement === this.list) return; // do not pull an open list away
    this.list.replaceChildren(make("option", { value: NEWEST }, "Newest"), ...options);
    this.list.value = chosen;
  }

  empty() {
    this.stages.replaceChildren(make("p", { class: "empty" }, "No traced request yet: `sits infer MODEL --trace` makes one, SITS_TRACE_RATIO=1 traces all."));
  }

  draw(trace) {
    this.drawn = trace.trace_id;
    const rows = trace.stages.filter((s) => s.kind !== "linked").map((s) => this.row(s, trace));
    const linked = trace.stages.filter((s) => s.kind === "linked").map(usedWeights);
    const silent = trace.silent.length ? [make("p", { class: "hint" }, `No answer from ${trace.silent.join(", ")}: their stages are missing.`)] : [];
    this.stages.replaceChildren(make("div", { class: "stages" }, ...rows), scale(trace), ...linked, ...silent);
    this.explain(trace.stages.find((s) => s.name === "dispatcher.place") ?? trace.stages[0]);
  }

  row(stage, trace) {
    const total = trace.total_ms || 1;
    const left = clamp((100 * stage.start_ms) / total);
    const width = Math.max(0.4, Math.min(100 - left, (100 * stage.duration_ms) / total));
    const bar = make("i", { style: { left: `${left}%`, width: `${width}%` } });
    const row = make("button", { type: "button", class: `stage ${stage.service} ${stage.kind}` },
      make("span", { class: "stage-name" }, stage.name),
      make("span", { class: "track" }, bar),
      make("span", { class: "number" }, ms(Math.max(0, stage.duration_ms))));
    if (stage.error) row.classList.add("failed");
    for (const event of ["focus", "pointerenter"]) row.addEventListener(event, () => this.explain(stage));
    return row;
  }

  explain(stage) {
    const pairs = Object.entries(stage.attributes).sort().map(([name, value]) => `${name} ${value}`);
    const parts = stage.error ? [`failed: ${stage.error}`, ...pairs] : pairs;
    this.attributes.replaceChildren(make("b", {}, `${stage.name} `), parts.join(" · ") || "no attributes");
  }
}

const clamp = (value) => Math.max(0, Math.min(99.6, value));

function requestName(request) {
  const at = new Date(request.ended_unix_ms).toLocaleTimeString("en-GB");
  const failed = request.error ? ` ${request.error}` : "";
  return `${at}  ${request.model || "?"}, ${request.tenant || "?"}: ${ms(request.total_ms)}${failed}`;
}

function scale({ total_ms }) {
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => make("span", {}, ms(total_ms * part)));
  return make("div", { class: "scale", "aria-hidden": "true" }, ...marks);
}

function usedWeights(stage) {
  const before = seconds(-stage.start_ms / 1000);
  return make("p", { class: "hint" }, make("b", {}, `${stage.name} `), `of ${before} before was made use of`);
}
