"""Options that several commands share."""

from typing import Annotated

import typer

from sits_cli.client import Place
from sits_cli.ports import DEFAULTS, is_address


def _address(text: str) -> str:
    if not is_address(text):
        raise typer.BadParameter(f"{text!r}: expected host:port")
    return text


def _grpc_address(text: str) -> str:
    """gRPC also listens on sockets in the file system."""
    return text if text.startswith("unix:") else _address(text)


Front = Annotated[
    str,
    typer.Option(
        "--front",
        envvar=["SITS_CLI_FRONT", "SITS_PREPROCESS_BIND"],
        help="address of the front door (preprocess)",
        metavar="HOST:PORT",
        callback=_grpc_address,
    ),
]
Dispatcher = Annotated[
    str,
    typer.Option(
        "--dispatcher",
        envvar=["SITS_CLI_DISPATCHER", "SITS_DISPATCHER_BIND"],
        help="address of a dispatcher",
        metavar="HOST:PORT",
        callback=_grpc_address,
    ),
]
Topology = Annotated[
    str,
    typer.Option(
        "--topology",
        envvar=["SITS_CLI_TOPOLOGY", "SITS_TOPOLOGY_BIND"],
        help="address of a topology service",
        metavar="HOST:PORT",
        callback=_grpc_address,
    ),
]
Admin = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar=["SITS_CLI_ADMIN", "SITS_DISPATCHER_ADMIN_BIND"],
        help="address of a dispatcher's admin port",
        metavar="HOST:PORT",
        callback=_address,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]

DEFAULT_ADMIN = DEFAULTS["SITS_DISPATCHER_ADMIN_BIND"]
DEFAULT_FRONT = DEFAULTS["SITS_PREPROCESS_BIND"]
DEFAULT_DISPATCHER = DEFAULTS["SITS_DISPATCHER_BIND"]
DEFAULT_TOPOLOGY = DEFAULTS["SITS_TOPOLOGY_BIND"]


def front_place(address: str) -> Place:
    return Place("front door", address, "--front", "SITS_CLI_API_KEY to one of its API keys")


def dispatcher_place(address: str) -> Place:
    return Place("dispatcher", address, "--dispatcher")


def topology_place(address: str) -> Place:
    return Place("topology service", address, "--topology")


def admin_place(address: str) -> Place:
    return Place("dispatcher's admin port", address, "--admin")
