"""`sits explain`: why a request went where it went."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from sits_cli.client import TIMEOUT_S, reached, tokens
from sits_cli.options import DEFAULT_DISPATCHER, Dispatcher, Json, dispatcher_place
from sits_cli.output import Column, dim, good, literal, print_json, print_table, say
from sits_protos.v1.control_pb2 import ExplainRequest, Explanation
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import CloseReason

_TITLES = (Column("executor", cut=True), Column("total", right=True), Column("terms"), "")


def explain(
    request_id: Annotated[
        str, typer.Argument(help="the id the client gave; without one: the newest decisions")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many decisions")] = 3,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    as_json: Json = False,
) -> None:
    """Show candidates, their scores and the pick of a placement decision."""
    request = ExplainRequest(request_id=request_id, limit=limit)
    with reached(dispatcher_place(dispatcher)) as channel:
        answer = ControlStub(channel).Explain(request, timeout=TIMEOUT_S, metadata=tokens())
    if as_json:
        print_json([_plain(found) for found in answer.explanations])
        return
    if not answer.explanations:
        say("No decision yet: send a request first, such as `sits infer MODEL`.")
    for found in answer.explanations:
        _show(found)
    if answer.explanations:
        say("[dim]Terms are what counts for an executor, costs below 0; the highest total wins.[/]")


def _show(found: Explanation) -> None:
    ids = ", ".join(found.request_ids[:4]) or "(requests without an id)"
    more = f" and {len(found.request_ids) - 4} more" if len(found.request_ids) > 4 else ""
    say(f"[bold]{literal(ids)}[/]{more}")
    if found.pipeline:
        say(f"pipeline {literal(found.pipeline)}, step {found.step}")
    say(
        f"model {literal(found.model)}  strategy {literal(found.strategy)}  "
        f"batch closed by {_reason(found)}  {found.eligible} of {found.considered} had room"
    )
    print_table(_TITLES, _rows(found))
    say()


def _rows(found: Explanation) -> Iterator[tuple[str | Text, ...]]:
    for rank, option in enumerate(found.options):
        terms = "  ".join(
            f"{name} {value + 0.0:.4g}" for name, value in sorted(option.scores.items())
        )
        mark = good("picked") if rank == 0 else dim("" if option.room else "no room")
        yield option.executor, f"{sum(option.scores.values()):.4g}", terms, mark


def _reason(found: Explanation) -> str:
    return CloseReason.Name(found.closed_by).removeprefix("CLOSE_REASON_").lower()


def _plain(found: Explanation) -> dict[str, object]:
    return {
        "request_ids": list(found.request_ids),
        "decided_unix_ns": found.decided_unix_ns,
        "model": found.model,
        "strategy": found.strategy,
        "closed_by": _reason(found),
        "considered": found.considered,
        "eligible": found.eligible,
        "pipeline": found.pipeline,
        "step": found.step,
        "options": [
            {"executor": o.executor, "scores": dict(o.scores), "room": o.room, "picked": rank == 0}
            for rank, o in enumerate(found.options)
        ],
    }
