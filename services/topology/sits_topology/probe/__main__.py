"""`python -m sits_topology.probe --output topo.json`: measures this host.

Writes the report into the file. On stdout: a JSON object a line for those who draw a bar,
`{"steps": n}` first, then `{"step": "..."}` as each begins. Exit status 1 with a line on
stderr when nothing can be measured.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import structlog

from sits_topology.model import TopologyError
from sits_topology.probe.run import FULL, QUICK, Probe, found_gpus
from sits_topology.sources import choose_source


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        topology = choose_source("auto").read()
    except TopologyError as error:
        print(f"the topology of this host cannot be read: {error}", file=sys.stderr)
        return 1
    gpus, notes = found_gpus(topology.devices)
    probe = Probe(topology, gpus, QUICK if options.quick else FULL, notes)
    _tell({"steps": probe.steps})
    report = probe.run(lambda text: _tell({"step": text}))
    _write(options.output, json.dumps(report.as_dict(), indent=1, ensure_ascii=False))
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sits_topology.probe", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repetitions")
    return parser


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what, ensure_ascii=False), flush=True)


def _write(path: Path, text: str) -> None:
    """In one piece: the topology service may be reading it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
