// What the mesh does about overload and faults: level, signals against their limits, last steps.

import { find, make, reconcile, setClass, setText } from "./dom.js";
import { ms, number, percent, seconds } from "./format.js";

const LEVELS = {
  normal: ["normal", "nothing is asked for"],
  scale_out: ["scale out", "more capacity is asked for"],
  replace: ["place anew", "waiting work is taken back from crowded executors"],
  degrade: ["degrade", "cheaper versions, smaller batches, low tiers refused, circuits broken"],
};
const TONES = ["good", "warn", "warn", "bad"];
const SIGNALS = {
  queue_median_ms: ["Half wait longer than", ms],
  load_over_knee: ["Load over the knee of p95", number],
  communication_share: ["Time spent communicating", percent],
  collective_failure: ["Collectives that fail", percent],
  memory_spread: ["Memory spread, fragmented", percent],
};
const SHOWN = 3;

export function governance({ state, taken_unix_ms: now }) {
  const { acts, level, scale_factor: factor, shed_tiers: shed, signals, steps } = state.governance;
  const facts = [acts ? null : "watches only", factor > 1 ? `asks for ${number(factor)} × the capacity` : null,
    shed.length ? `refuses ${shed.join(", ")}` : null];
  setText(find("#governance .hint"), facts.filter(Boolean).join(" · ") || "nothing is asked for");
  levels(level);
  reconcile(find("#governance .signals"), known(signals), (s) => s.name, signalBar, showSignal);
  const last = steps.slice(0, SHOWN);
  reconcile(find("#governance .steps"), last, (s) => s.at_unix_ms, () => make("li"), (li, step) => {
    const [name] = LEVELS[step.after] ?? [step.after];
    setText(li, `${seconds((now - step.at_unix_ms) / 1000)} ago ${name}: ${step.cause}`);
  });
}

function levels(current) {
  const names = Object.keys(LEVELS);
  const at = names.indexOf(current);
  reconcile(find("#governance .levels"), names, (name) => name, (name) => make("li", { title: LEVELS[name][1] }, LEVELS[name][0]), (li, name) => {
    const place = names.indexOf(name);
    setClass(li, place === at ? TONES[at] : "");
    if (place === at) li.setAttribute("aria-current", "step");
    else li.removeAttribute("aria-current");
  });
}

/** In our order; those that we have no words for come last. */
function known(signals) {
  const order = Object.keys(SIGNALS);
  const place = ({ name }) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...signals].sort((a, b) => place(a) - place(b));
}

function signalBar({ name, limits }) {
  const [title] = SIGNALS[name] ?? [name];
  const most = Math.max(...limits.map((limit) => limit.above));
  const marks = limits.map((limit) => make("b", { style: { left: `${(100 * limit.above) / (most * 1.25)}%` }, title: `above ${text(name, limit.above)}: ${LEVELS[limit.level][0]}` }));
  return make("li", {}, make("span", {}, title), make("span", { class: "track" }, make("i"), ...marks), make("span", { class: "number" }));
}

function showSignal(li, { name, value, limits }) {
  const most = Math.max(...limits.map((limit) => limit.above));
  const crossed = limits.filter((limit) => value > limit.above).length;
  const bar = find("i", li);
  bar.style.width = `${Math.min(100, (100 * value) / (most * 1.25))}%`;
  setClass(bar, crossed === 0 ? "" : crossed === limits.length && limits.length > 1 ? "bad" : "warn");
  setText(li.lastChild, text(name, value));
}

function text(name, value) {
  return (SIGNALS[name]?.[1] ?? number)(value);
}
