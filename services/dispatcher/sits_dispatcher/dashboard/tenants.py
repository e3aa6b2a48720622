"""Tenants against their service level objectives, from the front doors' counters. Pure."""

from collections.abc import Mapping
from typing import Final

from sits_dispatcher import admin_models as api
from sits_dispatcher.dashboard.tracks import Counters, buckets, quantile, within

OTHERS: Final = "*"
"""Stands for all tenants that have no objective of their own."""
OK: Final = "OK"
LATE: Final = "DEADLINE_EXCEEDED"
CLIENTS_FAULT: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "UNAUTHENTICATED",
     "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED", "CANCELLED"}
)  # fmt: skip


def objectives(text: str) -> dict[str, float]:
    """Milliseconds by tenant, of `gold=200,silver=500,*=1000`."""
    pairs = (part.split("=") for part in text.split(",") if part)
    return {tenant: float(ms) for tenant, ms in pairs}


def tenants(rates: Counters, slo_ms: Mapping[str, float]) -> list[api.Tenant]:
    """Those with traffic, and all that have an objective."""
    seen = {key[1] for key in rates if key[0] == "sits_requests_total"}
    named = sorted(slo_ms.keys() - {OTHERS}, key=lambda name: slo_ms[name])
    return [
        _tenant(rates, name, slo_ms.get(name, slo_ms.get(OTHERS)))
        for name in [*named, *sorted(seen - set(named))]
    ]


def _tenant(rates: Counters, name: str, slo_ms: float | None) -> api.Tenant:
    outcomes = {
        key[2]: rate for key, rate in rates.items() if key[:2] == ("sits_requests_total", name)
    }
    seconds = buckets(rates, "sits_request_seconds_bucket", name)
    p50_s, p99_s = quantile(seconds, 0.5), quantile(seconds, 0.99)
    return api.Tenant(
        tenant=name,
        requests_per_s=sum(outcomes.values()),
        failed_per_s=sum(rate for outcome, rate in outcomes.items() if outcome != OK),
        p50_ms=None if p50_s is None else p50_s * 1e3,
        p99_ms=None if p99_s is None else p99_s * 1e3,
        slo_ms=slo_ms,
        in_slo=None if slo_ms is None else _share(outcomes, within(seconds, slo_ms / 1e3)),
    )


def _share(outcomes: Mapping[str, float], in_time: float) -> float | None:
    """Latencies are not told apart by outcome: a failure counts as quick unless it was late."""
    clients = sum(rate for outcome, rate in outcomes.items() if outcome in CLIENTS_FAULT)
    quick = sum(rate for outcome, rate in outcomes.items() if outcome not in (OK, LATE))
    judged = sum(outcomes.values()) - clients
    return min(1.0, max(0.0, in_time - quick) / judged) if judged > 0 else None
