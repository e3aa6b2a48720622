"""The live view of `sits top`: what /v1/live tells, as tables of a terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sits_cli.output import Column, bad, count, dim, duration, good, table

Live = Mapping[str, Any]
BAR_CELLS = 10
NONE = "–"


def draw(live: Live) -> RenderableType:
    """One screen."""
    parts: list[RenderableType] = [facts(live), figures(live), Text(), executors(live)]
    for made in (tenants(live), models(live), closings(live)):
        parts += [Text(), made]
    if live["silent_fronts"]:
        parts += [Text(), bad(f"no figures from {', '.join(live['silent_fronts'])}")]
    return Group(*parts)


def facts(live: Live) -> Text:
    state = live["state"]
    up_s = (live["taken_unix_ms"] - state["started_unix_ms"]) / 1e3
    executors, fronts = len(state["executors"]), len(state["fronts"])
    parts = [
        Text(state["strategy"], style="bold"),
        _redis(state["redis"]),
        _topology(state["topology_age_s"]),
        _governance(state["governance"]),
        Text(f"{count(executors, 'executor')}, {count(fronts, 'front door')}"),
        Text(f"up {duration(max(0.0, up_s))}"),
    ]
    return Text("   ").join(parts)


def _redis(redis: Mapping[str, Any]) -> Text:
    if not redis["configured"]:
        return dim("no Redis")
    return good("Redis connected") if redis["connected"] else bad("Redis lost")


def _topology(age_s: float | None) -> Text:
    return dim("no topology yet") if age_s is None else Text(f"topology {duration(age_s)} old")


def _governance(governance: Mapping[str, Any]) -> Text:
    level, shed = governance["level"].replace("_", " "), ", ".join(governance["shed_tiers"])
    if level == "normal":
        return good("normal")
    return bad(f"{level}, refuses {shed}") if shed else Text(level, style="yellow")


def figures(live: Live) -> Text:
    traffic, queues = live["traffic"], live["queues"]
    total, outcomes = traffic["requests_per_s"], traffic["outcomes_per_s"]
    failed = sum(rate for outcome, rate in outcomes.items() if outcome != "OK")
    pairs = [
        ("requests/s", number(total)),
        ("failed/s", number(None if total is None else failed)),
        ("p50", ms(traffic["p50_ms"])),
        ("p99", ms(traffic["p99_ms"])),
        ("rows/s", number(traffic["rows_per_s"])),
        ("waiting", number(queues["front_requests"])),
        ("at dispatcher", number(queues["pending_batches"])),
        ("running", number(queues["in_flight_batches"])),
    ]
    shown = (Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in pairs)
    return Text("   ").join(shown)


def executors(live: Live) -> Table:
    rates = live["answered_per_s"]
    columns = ("executor", "device", "load", _right(""), _right("rows"), _right("batches/s"),
               "transport", "state")  # fmt: skip
    return table(columns, (_executor(e, rates) for e in live["state"]["executors"]))


def _executor(executor: Live, rates: Mapping[str, float]) -> tuple[str | Text, ...]:
    there, at_once = executor["batches_in_flight"], executor["parallel"]
    return (
        executor["id"],
        executor["device"],
        bar(there / at_once if at_once else 0.0),
        f"{there}/{at_once}",
        number(executor["rows_in_flight"]),
        number(rates.get(executor["id"])),
        executor["transport"],
        Text("draining", style="yellow") if executor["draining"] else good("ready"),
    )


def bar(load: float) -> Text:
    """Full = all that runs at once is running; more than that is yellow."""
    cells = min(BAR_CELLS, round(load * BAR_CELLS))
    style = "yellow" if load > 1 else "green"
    return Text.assemble(("█" * cells, style), ("░" * (BAR_CELLS - cells), "dim"))


def tenants(live: Live) -> Table:
    columns = ("tenant", _right("requests/s"), _right("p50"), _right("p99"), _right("objective"),
               _right("in time"), _right("failed/s"))  # fmt: skip
    return table(columns, map(_tenant, live["tenants"]))


def _tenant(tenant: Live) -> tuple[str | Text, ...]:
    return (
        tenant["tenant"],
        number(tenant["requests_per_s"]),
        ms(tenant["p50_ms"]),
        ms(tenant["p99_ms"]),
        ms(tenant["slo_ms"]),
        _in_time(tenant["in_slo"]),
        number(tenant["failed_per_s"]),
    )


def _in_time(share: float | None) -> Text:
    if share is None:
        return dim(NONE)
    style = "green" if share >= 0.99 else "yellow" if share >= 0.95 else "bold red"
    return Text(f"{100 * share:.4g} %", style=style)


def models(live: Live) -> Table:
    rates = {rate["model"]: rate for rate in live["models"]}
    columns = ("model", _right("version"), "state", "strategy", _right("batches/s"),
               _right("rows/s"))  # fmt: skip
    return table(columns, (_model(m, rates) for m in live["state"]["models"]))


def _model(model: Live, rates: Mapping[str, Live]) -> tuple[str | Text, ...]:
    rate = rates.get(model["name"], {})
    state = good("ready") if model["state"] == "ready" else Text(model["state"], style="yellow")
    return (
        model["name"],
        model["version"],
        state,
        model["strategy"],
        number(rate.get("batches_per_s")),
        number(rate.get("rows_per_s")),
    )


def closings(live: Live) -> Text:
    """Why batches closed lately, the most frequent reason first."""
    reasons: Iterable[Live] = live["batching"]["reasons"]
    frequent = sorted((r for r in reasons if r["per_s"] > 0), key=lambda r: -float(r["per_s"]))
    shown = ", ".join(f"{r['reason']} {number(r['per_s'])}/s" for r in frequent)
    rows = number(live["batching"]["rows_per_batch"])
    return Text.assemble(("batches closed  ", "dim"), f"{shown or NONE}  ({rows} rows each)")


def number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2g}"


def ms(value: float | None) -> str:
    return NONE if value is None else duration(value / 1e3)


def _right(title: str) -> Column:
    return Column(title, right=True)
