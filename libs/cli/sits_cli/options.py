"""Options that several commands share."""

from typing import Annotated

import typer

from sits_cli.client import Place
from sits_cli.ports import DEFAULTS, is_address

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
Admin = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar=["SITS_CLI_ADMIN", "SITS_DISPATCHER_ADMIN_BIND"],
        help="address of a dispatcher's admin port",
        metavar="HOST:PORT",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]

DEFAULT_ADMIN = DEFAULTS["SITS_DISPATCHER_ADMIN_BIND"]
DEFAULT_FRONT = DEFAULTS["SITS_PREPROCESS_BIND"]
DEFAULT_DISPATCHER = DEFAULTS["SITS_DISPATCHER_BIND"]
DEFAULT_TOPOLOGY = DEFAULTS["SITS_TOPOLOGY_BIND"]


def front_place(address: str) -> Place:
    key = "SITS_CLI_API_KEY to one of its API keys"
    return _grpc_place(Place("front door", address, "--front", key))


def dispatcher_place(address: str) -> Place:
    return _grpc_place(Place("dispatcher", address, "--dispatcher"))


def topology_place(address: str) -> Place:
    return _grpc_place(Place("topology service", address, "--topology"))


def admin_place(address: str) -> Place:
    return _checked(Place("dispatcher's admin port", address, "--admin"))


def _grpc_place(place: Place) -> Place:
    """gRPC also listens on sockets in the file system."""
    return place if place.address.startswith("unix:") else _checked(place)


def _checked(place: Place) -> Place:
    """Where it is used: the variables may say something else of services that are not asked."""
    if not is_address(place.address):
        raise typer.BadParameter(f"{place.address!r}: expected host:port", param_hint=place.option)
    return place
