"""Options that several commands share."""

from typing import Annotated

import typer

from sits_cli.client import Place
from sits_cli.ports import DEFAULTS

Front = Annotated[
    str,
    typer.Option(
        "--front",
        envvar=["SITS_CLI_FRONT", "SITS_PREPROCESS_BIND"],
        help="address of the front door (preprocess)",
        metavar="HOST:PORT",
    ),
]
Dispatcher = Annotated[
    str,
    typer.Option(
        "--dispatcher",
        envvar=["SITS_CLI_DISPATCHER", "SITS_DISPATCHER_BIND"],
        help="address of a dispatcher",
        metavar="HOST:PORT",
    ),
]
Topology = Annotated[
    str,
    typer.Option(
        "--topology",
        envvar=["SITS_CLI_TOPOLOGY", "SITS_TOPOLOGY_BIND"],
        help="address of a topology service",
        metavar="HOST:PORT",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]

DEFAULT_FRONT = DEFAULTS["SITS_PREPROCESS_BIND"]
DEFAULT_DISPATCHER = DEFAULTS["SITS_DISPATCHER_BIND"]
DEFAULT_TOPOLOGY = DEFAULTS["SITS_TOPOLOGY_BIND"]


def front_place(address: str) -> Place:
    return Place("front door", address, "--front", "SITS_CLI_API_KEY to one of its API keys")


def dispatcher_place(address: str) -> Place:
    return Place("dispatcher", address, "--dispatcher")


def topology_place(address: str) -> Place:
    return Place("topology service", address, "--topology")
