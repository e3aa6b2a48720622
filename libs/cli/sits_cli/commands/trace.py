"""`sits trace`: where a request spent its time, over all services."""

import re
import time
from dataclasses import asdict
from typing import Annotated

import typer

from sits_cli import spans, waterfall_view
from sits_cli.client import CliError, Place
from sits_cli.options import (
    DEFAULT_DISPATCHER,
    DEFAULT_TOPOLOGY,
    Dispatcher,
    Json,
    Topology,
    dispatcher_place,
    topology_place,
)
from sits_cli.output import console, print_drawn, print_json
from sits_core.waterfall import ROOT_NAME, Waterfall, newest

LATEST = "latest"
SETTLE_S, POLL_S = 2.0, 0.05


def trace(
    trace_id: Annotated[
        str, typer.Argument(metavar="[ID|latest]", help="32 hex digits, or the newest request")
    ] = LATEST,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    topology: Topology = DEFAULT_TOPOLOGY,
    as_json: Json = False,
) -> None:
    """Draw the stages of a recent request as a waterfall."""
    wanted = parse(trace_id)
    places = spans.control_places(dispatcher_place(dispatcher), topology_place(topology))
    show(find(places, wanted), as_json=as_json)


def parse(text: str) -> bytes | None:
    """None for the newest."""
    if text == LATEST:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{32}", text):
        raise typer.BadParameter(f"{text!r} is neither 32 hex digits nor `{LATEST}`")
    return bytes.fromhex(text)


def find(places: list[Place], wanted: bytes | None) -> Waterfall:
    """Raises `CliError` when no service remembers such a request."""
    trace_id = wanted or _newest(places)
    found = spans.waterfall(places, trace_id)
    if not found.rows:
        raise CliError(
            f"no service remembers trace {trace_id.hex()}: it was not sampled or is too old; "
            "`sits infer MODEL --trace` makes one"
        )
    return found


def find_soon(places: list[Place], trace_id: bytes) -> Waterfall:
    """`find` for a request answered just now: its root span is recorded after the answer."""
    give_up_s = time.monotonic() + SETTLE_S
    while time.monotonic() < give_up_s:
        found = spans.waterfall(places, trace_id)
        if any(row.name == ROOT_NAME for row in found.rows):
            return found
        time.sleep(POLL_S)
    return find(places, trace_id)


def _newest(places: list[Place]) -> bytes:
    fetched = spans.fetch(places)
    request = newest(fetched.spans)
    if request is not None:
        return request.trace_id
    silent = ", ".join(place.address for place in fetched.silent)
    no_answer = f" (no answer from {silent})" if silent else ""
    raise CliError(
        f"no traced request yet{no_answer}: `sits infer MODEL --trace` makes one, "
        "SITS_TRACE_RATIO=1 traces all"
    )


def show(found: Waterfall, *, as_json: bool) -> None:
    if as_json:
        print_json(as_dict(found))
    else:
        target = console()
        print_drawn(waterfall_view.draw(found, waterfall_view.bar_width(target)), target)


def as_dict(found: Waterfall) -> dict[str, object]:
    return {
        "trace_id": found.trace_id.hex(),
        "total_ns": found.total_ns,
        "stage_ns": found.stage_ns,
        "travel_ns": found.travel_ns,
        "rest_ns": found.rest_ns,
        "rows": [asdict(row) | {"kind": row.kind.value} for row in found.rows],
    }
