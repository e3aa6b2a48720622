"""The `sits` command: puts the subcommands together and turns failures into exit statuses."""

import json
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import structlog
import typer

from sits_cli.client import CliError
from sits_cli.commands import (
    bench,
    doctor,
    explain,
    gang,
    infer,
    models,
    probe,
    shadow,
    simulate,
    status,
    switch,
    top,
    topology,
    trace,
    up,
)
from sits_cli.output import console, literal
from sits_core.settings import SettingsError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = typer.Typer(name="sits", no_args_is_help=True, pretty_exceptions_enable=False)


def tell(wanted: bool) -> None:
    if wanted:
        print(version("sits-cli"))
        raise typer.Exit


@app.callback()
def sits(
    _version: Annotated[
        bool, typer.Option("--version", callback=tell, is_eager=True, help="print it, and end")
    ] = False,
) -> None:
    """Run and operate a SITS serving mesh."""


app.command("up")(up.up)
app.command("status")(status.status)
app.command("top")(top.top)
app.add_typer(models.app, name="models")
app.command("infer")(infer.infer)
app.command("trace")(trace.trace)
app.command("topology")(topology.topology)
app.command("probe")(probe.probe)
app.command("switch")(switch.switch)
app.command("shadow")(shadow.shadow)
app.command("explain")(explain.explain)
app.command("gang")(gang.gang)
app.command("doctor")(doctor.doctor)
app.command("simulate")(simulate.simulate)
app.command("bench", context_settings=bench.PASS_ON)(bench.bench)


def main(args: Sequence[str] | None = None) -> None:
    """Exit status: 0 fine, 1 failed, 2 wrong usage. stderr says why and what to do, as an object
    with `--json`."""
    if args is None:  # what libraries would log, errors say
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    given = sys.argv[1:] if args is None else list(args)
    as_json = "--json" in given
    try:
        # Standalone, typer draws what is wrong usage, and never returns.
        sys.exit(app(args=given, prog_name="sits", standalone_mode=not as_json))
    except typer.TyperException as error:
        complain(wrong_usage(error), as_json=True)
        sys.exit(error.exit_code)
    except (CliError, SettingsError) as error:
        complain(str(error), as_json=as_json)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `sits … | head`
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def complain(text: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": text}, ensure_ascii=False), file=sys.stderr)
    else:
        console(stderr=True).print(f"[bold red]error:[/] {literal(text)}", soft_wrap=True)


def wrong_usage(error: typer.TyperException) -> str:
    """What typer says about it, and where to read how it is right."""
    context: typer.Context | None = getattr(error, "ctx", None)
    text = error.format_message().removesuffix(".")
    return f"{text}: `{context.command_path} --help` lists what it takes" if context else text
