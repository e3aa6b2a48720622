"""The life of a service process, tried on a real one."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[str]]

SERVICE = """
import os, sys, threading, time
from pydantic import Field
from sits_core.process import run
from sits_core.settings import Settings

class Own(Settings):
    executor_threads: int = Field(default=1, ge=1, description="how many")

def serve(settings, stop):
    def say(text):
        print(text, flush=True)
    {body}

run("executor", Own, serve)
"""
ORDERLY = "say('ready'); stop.wait(); say('stopping')"
STUBBORN = "say('ready'); stop.wait(); say('stopping'); time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as running:

        def begin(body: str, **variables: str) -> subprocess.Popen[str]:
            script = tmp_path / "service.py"
            script.write_text(SERVICE.format(body=textwrap.indent(body, "    ").strip()))
            env = {k: v for k, v in os.environ.items() if not k.startswith(("SITS_", "OTEL_"))}
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, str(script)],
                    env={**env, **variables},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            running.callback(process.kill)
            return process

        yield begin


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], 30)
    assert readable, "the process said nothing"
    return process.stdout.readline().strip()


def test_an_unknown_setting_ends_with_2_and_its_name(start: Start) -> None:
    process = start(ORDERLY, SITS_FOO="1")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith("sits-executor: unknown setting SITS_FOO; ")
    assert said.count("\n") == 1


def test_an_invalid_value_ends_with_2_and_names_the_variable(start: Start) -> None:
    process = start(ORDERLY, SITS_EXECUTOR_THREADS="none")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith("sits-executor: SITS_EXECUTOR_THREADS: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order_and_ends_with_0(start: Start, number: signal.Signals) -> None:
    process = start(ORDERLY)
    assert line(process) == "ready"
    process.send_signal(number)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "stopping\n")
    assert '"event": "process.stopped"' in said


def test_a_second_interrupt_ends_at_once(start: Start) -> None:
    process = start(STUBBORN)
    assert line(process) == "ready"
    process.send_signal(signal.SIGINT)
    assert line(process) == "stopping"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT


def test_a_repeated_sigterm_does_not_cut_the_end_short(start: Start) -> None:
    process = start("say('ready'); stop.wait(); say('stopping'); input(); say('done'); input()")
    assert process.stdin is not None
    assert line(process) == "ready"
    process.send_signal(signal.SIGTERM)
    assert line(process) == "stopping"
    process.send_signal(signal.SIGTERM)
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert line(process) == "done"


def test_a_thread_that_dies_stands_in_the_log(start: Start) -> None:
    process = start(
        "thread = threading.Thread(target=lambda: 1 // 0, name='worker')\n"
        "thread.start()\nthread.join()"
    )
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert '"event": "thread.died"' in said
    assert '"thread": "worker"' in said
    assert "ZeroDivisionError" in said
