"""`sits gang`: which GPUs a model that needs several would get, and which others there are."""

from collections.abc import Iterator
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.text import Text

from sits_cli.client import TIMEOUT_S, reached, tokens
from sits_cli.options import DEFAULT_DISPATCHER, Dispatcher, Json, dispatcher_place
from sits_cli.output import Column, good, print_json, print_table
from sits_protos.v1.control_pb2 import ChooseGangRequest, ChooseGangResponse, Gang
from sits_protos.v1.control_pb2_grpc import ControlStub

TITLES = (
    "host", "GPUs", Column("weakest link, GB/s", right=True), Column("all-reduce, µs", right=True),
    "",
)  # fmt: skip


def gang(
    size: Annotated[int, typer.Option("--size", help="2, 4 or 8 GPUs")],
    host: Annotated[str, typer.Option(help="only of this host; default: of any")] = "",
    collective_bytes: Annotated[
        int, typer.Option("--bytes", min=1, help="size of the all-reduce that it is chosen for")
    ] = 64 << 20,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    as_json: Json = False,
) -> None:
    """Show the gang of GPUs that the dispatcher would choose by the published weights."""
    request = ChooseGangRequest(size=size, host=host, collective_bytes=collective_bytes)
    with reached(dispatcher_place(dispatcher)) as channel:
        answer = ControlStub(channel).ChooseGang(request, timeout=TIMEOUT_S, metadata=tokens())
    if as_json:
        print_json(MessageToDict(answer, preserving_proto_field_name=True))
    else:
        print_table(TITLES, _rows(answer))


def _rows(answer: ChooseGangResponse) -> Iterator[tuple[str | Text, ...]]:
    yield (*_cells(answer.chosen), good("chosen"))
    for other in answer.alternatives:
        yield (*_cells(other), "")


def _cells(found: Gang) -> tuple[str, ...]:
    speed, takes = f"{found.bottleneck_gbps:.4g}", f"{found.collective_us:.4g}"
    return found.host, ", ".join(found.devices), speed, takes
