"""Runs `sits` as a user would, against fakes of the services."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from sits_cli import testing
from sits_cli.main import main
from sits_core.rpc import Server
from sits_core.settings import Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    out: str
    err: str


Sits = Callable[..., Outcome]


@pytest.fixture
def sits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sits:
    """`sits("models", "--json")` → exit status and what it printed, without a terminal."""
    for name in [name for name in os.environ if name.startswith("SITS_")]:
        monkeypatch.delenv(name)

    def run(*args: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(servicer, …)` → the address that serves all of them, until the test ends."""
    with ExitStack() as stack:

        def start(*servicers: object, tokens: tuple[str, ...] = ()) -> str:
            server = Server("127.0.0.1:0", Settings(), tokens=tokens)
            for servicer in servicers:
                testing.add(server, servicer)
            stack.enter_context(server)
            server.set_ready(True)
            return f"127.0.0.1:{server.port}"

        yield start
