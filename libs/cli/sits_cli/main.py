"""The `sits` command: puts the subcommands together and turns failures into exit statuses."""

import sys
from collections.abc import Sequence

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

app = typer.Typer(
    name="sits",
    help="Run and operate a SITS serving mesh.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
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
    """Exit status: 0 fine, 1 failed (stderr says why and what to do), 2 wrong usage."""
    try:
        app(args=None if args is None else list(args), prog_name="sits")
    except (CliError, SettingsError) as error:
        console(stderr=True).print(f"[bold red]error:[/] {literal(str(error))}", soft_wrap=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `sits … | head`
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
