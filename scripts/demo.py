"""Run the mesh on real models, check its answers, show what it does: `make demo`.

Exit status 0 only if the answers are right and one trace shows all four services.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from sits_cli import front, ports, spans
from sits_cli.client import CliError, Place
from sits_cli.commands import topology as topology_command
from sits_cli.commands import trace as trace_command
from sits_cli.demo import content_types, samples, show, similarity, stages, throughput
from sits_cli.mesh import Mesh, MeshFailed, Plan
from sits_cli.output import bad, console, duration, good, literal, print_json, print_table, say
from sits_core.settings import SettingsError
from sits_protos.v1.topology_pb2 import TopologySnapshot

ROOT = Path(__file__).resolve().parent.parent
MODELS, LOGS = ROOT / "models", ROOT / ".sits" / "demo-logs"
EXECUTORS = 2
READY_TIMEOUT_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Results:
    content_types: content_types.ContentTypes
    similarity: similarity.Similarity
    throughput: throughput.Throughput
    stages: stages.Stages
    topology: TopologySnapshot

    def verdicts(self) -> dict[str, bool]:
        return {
            "content types": self.content_types.right,
            "sentence similarity": self.similarity.right,
            "network answers": self.throughput.right,
            "trace of four services": self.stages.right,
        }


class Steps:
    """Does one part after the other, and shows each as soon as it is done."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, title: str, work: Callable[[], T], present: Callable[[T], None]) -> T:
        if self._quiet:
            return work()
        show.heading(title)
        with console(stderr=True).status("running"):
            result = work()
        present(result)
        return result


def run(mesh: Mesh, step: Steps) -> Results:
    book = mesh.addresses
    dispatcher, node = Place("dispatcher", book.dispatcher), Place("topology", book.topology)
    files = samples.all_samples(ROOT)
    with front.connected(Place("front door", book.front)) as client:
        results = Results(
            step("What kind of file is it? (magika)",
                 lambda: content_types.run(client, files), show.content_types),
            step("Do two sentences mean the same? (MiniLM)",
                 lambda: similarity.run(client, MODELS), show.similarity),
            step(f"What batching does: a wide network, {throughput.IN_FLIGHT} requests in flight",
                 lambda: throughput.run(client, MODELS), show.throughput),
            step(f"Latency by stage, {stages.AT_ONCE} requests in flight",
                 lambda: stages.run(client, spans.control_places(dispatcher, node)), show.stages),
            step("The topology seen",
                 lambda: topology_command.get(book.topology), topology_command.show),
        )  # fmt: skip
    step("One request through the four services", lambda: results.stages, show.trace)
    return results


def conclude(results: Results, took_s: float) -> None:
    show.heading("Result")
    verdicts = results.verdicts().items()
    print_table(("", ""), [(name, good("right") if ok else bad("wrong")) for name, ok in verdicts])
    say(f"\nDone in {duration(took_s)}. Your turn: `make up`, then any tritonclient program.")


def as_dict(results: Results, took_s: float) -> dict[str, object]:
    kinds, speed = results.content_types, results.throughput
    return {
        "right": all(results.verdicts().values()),
        "verdicts": results.verdicts(),
        "content_types": {
            "right": kinds.right_count,
            "of": len(kinds.guesses),
            "guesses": [asdict(guess) | {"right": guess.right} for guess in kinds.guesses],
        },
        "similarity": [asdict(pair) for pair in results.similarity.pairs],
        "throughput": asdict(speed) | {"ratio": speed.ratio},
        "stages": [asdict(stage) for stage in results.stages.stages],
        "topology": topology_command.as_dict(results.topology),
        "trace": trace_command.as_dict(results.stages.waterfall),
        "took_s": took_s,
    }


def start(mesh: Mesh) -> None:
    with console(stderr=True).status("starting the mesh") as spinner:
        mesh.start()
        mesh.wait_ready(
            READY_TIMEOUT_S, lambda names: spinner.update(f"waiting for {', '.join(names)}")
        )


def demonstrate(*, as_json: bool) -> bool:
    """Whether all was right."""
    start_s = time.monotonic()
    mesh = Mesh(Plan(ports.free(EXECUTORS), models=MODELS, log_dir=LOGS))
    try:
        start(mesh)
        if not as_json:
            took = duration(time.monotonic() - start_s)
            say(
                f"The mesh is up after {took}: four kinds of service, {EXECUTORS} executors, "
                f"front door at {mesh.addresses.front}."
            )
        results = run(mesh, Steps(quiet=as_json))
    finally:
        mesh.stop()
    took_s = time.monotonic() - start_s
    if as_json:
        print_json(as_dict(results, took_s))
    else:
        conclude(results, took_s)
    return all(results.verdicts().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    try:
        right = demonstrate(as_json=options.json)
    except (CliError, MeshFailed, SettingsError) as error:
        console(stderr=True).print(f"[bold red]error:[/] {literal(str(error))}", soft_wrap=True)
        sys.exit(1)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
