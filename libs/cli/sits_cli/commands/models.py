"""`sits models`: what the mesh can run, and in which state; loads and unloads on all executors."""

from dataclasses import asdict, dataclass, replace

import typer
from rich.text import Text

from sits_cli import front
from sits_cli.commands import load
from sits_cli.options import DEFAULT_FRONT, Front, Json, front_place
from sits_cli.output import bad, good, print_json, print_table, say

READY = "READY"

app = typer.Typer(help="List the models, load and unload them.")
app.command("load")(load.load)
app.command("unload")(load.unload)


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One version of one model; `inputs` and `outputs` only of ready ones."""

    name: str
    version: str
    state: str
    reason: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@app.callback(invoke_without_command=True)
def models(context: typer.Context, address: Front = DEFAULT_FRONT, as_json: Json = False) -> None:
    """List the models with their state, inputs and outputs; or load and unload them."""
    if context.invoked_subcommand is None:
        listing(address, as_json=as_json)


def listing(address: str, *, as_json: bool) -> None:
    with front.connected(front_place(address)) as client:
        lines = [_line(client, entry) for entry in client.get_model_repository_index().models]
    lines.sort(key=lambda line: (line.name, len(line.version), line.version))
    if as_json:
        print_json([asdict(line) for line in lines])
    elif not lines:
        say(
            "The front door knows of no model. Is there one in the model repository (`make models` "
            "fetches the demo's)? `sits status` tells whether executors are up and linked."
        )
    else:
        print_table(("model", "version", "state", "inputs", "outputs", "reason"), map(_row, lines))


def _line(client: front.Client, entry: front.Message) -> ModelLine:
    line = ModelLine(entry.name, entry.version, entry.state or "UNKNOWN", entry.reason)
    if entry.state != READY:
        return line
    metadata = client.get_model_metadata(entry.name, entry.version)
    inputs, outputs = map(front.signature, metadata.inputs), map(front.signature, metadata.outputs)
    return replace(line, inputs=tuple(inputs), outputs=tuple(outputs))


def _row(line: ModelLine) -> tuple[str | Text, ...]:
    colour = {READY: good, "UNAVAILABLE": bad}.get(line.state, Text)
    inputs, outputs = "\n".join(line.inputs), "\n".join(line.outputs)
    return line.name, line.version, colour(line.state.lower()), inputs, outputs, line.reason
