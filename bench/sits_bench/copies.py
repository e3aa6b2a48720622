"""Counters of the services around a run: how often payload bytes were copied."""

import re
import urllib.request
from collections.abc import Sequence
from typing import Final, NamedTuple

from sits_bench.loadgen import UNKNOWN, Copies
from sits_bench.system import Running

COPIES: Final = r"sits_payload_copies_total"
REQUESTS: Final = r"sits_requests_total"


class Counted(NamedTuple):
    """`between`: by the dispatcher and the executors. None = nobody counts."""

    requests: float
    everywhere: float | None
    between: float


def counted(running: Running) -> Counted:
    _front, *inner = running.metrics or ("",)
    return Counted(
        counters(running.metrics, REQUESTS) or 0.0,
        counters(running.metrics, COPIES),
        counters(inner, COPIES) or 0.0,
    )


def per_request(before: Counted, after: Counted) -> Copies:
    requests = after.requests - before.requests
    if after.everywhere is None or not requests:
        return UNKNOWN
    everywhere = after.everywhere - (before.everywhere or 0.0)
    return Copies(everywhere / requests, (after.between - before.between) / requests)


def counters(addresses: Sequence[str], pattern: str) -> float | None:
    """The sum of all samples whose name and labels match, over the services at `addresses`;
    None when there is no such sample."""
    matches = re.compile(pattern)
    values: list[float] = []
    for address in addresses:
        url = f"http://{address}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            lines = response.read().decode().splitlines()
        values += [float(line.rpartition(" ")[2]) for line in lines if matches.match(line)]
    return sum(values) if values else None
