"""`sits top`: the mesh at work, in the terminal."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sits_cli import admin, top_view
from sits_cli.client import CliError, Place
from sits_cli.options import DEFAULT_ADMIN, Admin, Json, admin_place
from sits_cli.output import console, print_drawn, print_json

PATH = "/v1/live"
PERIOD_S = 1.0


def top(
    address: Admin = DEFAULT_ADMIN,
    once: Annotated[bool, typer.Option("--once", help="print it once, and end")] = False,
    as_json: Json = False,
) -> None:
    """Show load, queues, rates and latencies, live until Ctrl-C."""
    place = admin_place(address)
    out = console()
    if as_json:
        print_json(with_rates(place))
    elif once or not out.file.isatty():  # whatever colours it is told to use
        print_drawn(top_view.draw(with_rates(place)), out)
    else:
        watch(place, out)


def with_rates(place: Place) -> top_view.Live:
    """Who looks first has to look twice: rates are between two looks."""
    live: top_view.Live = admin.get(place, PATH)
    while not live["window_s"]:
        time.sleep(PERIOD_S)
        live = admin.get(place, PATH)
    return live


def watch(place: Place, out: Console) -> None:
    """Until Ctrl-C. A dispatcher that goes away is waited for, the last picture stays."""
    with Live(top_view.draw(admin.get(place, PATH)), console=out, screen=True) as screen:
        while True:
            time.sleep(PERIOD_S)
            try:
                screen.update(top_view.draw(admin.get(place, PATH)), refresh=True)
            except CliError as error:
                screen.update(Text(f"{error}\n\nWaiting for it. Ctrl-C ends.", style="yellow"),
                              refresh=True)  # fmt: skip
