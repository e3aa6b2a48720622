"""More processes that serve the same front port: children of the first one, alike but for their
other ports. The kernel spreads connections over all of them."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

import structlog

from sits_core.keepers import Periodic
from sits_preprocess.settings import PreprocessSettings

log = structlog.get_logger()

PORT_STEP: Final = 100
"""Metrics and control of the n-th child are this many ports times n above those of the first."""
LOOK_PERIOD_S: Final = 1.0
STOP_EXTRA_S: Final = 3.0
"""Beyond the drain: to end streams, threads and the interpreter."""

TIED: Final = "--tied"
"""Tells a child that it ends with its standard input, which its parent holds open."""


class Workers:
    """Keeps the children of a front door running from `start` to `stop`.

    `port` is where the first process listens. Children may use the processors that this process
    may use when this is made, whatever its threads are bound to later. A child that dies is
    started again within a second; one whose parent dies ends by itself.
    """

    def __init__(self, settings: PreprocessSettings, port: int) -> None:
        self._settings, self._port = settings, port
        self._cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._watch = Periodic(self._look, LOOK_PERIOD_S, "front processes")

    def start(self) -> None:
        if self._settings.preprocess_processes > 1:
            self._watch.start()

    def stop(self, grace_s: float) -> None:
        """All drain at once, and get `grace_s` for it; what is left then is killed."""
        self._watch.stop()
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            try:
                child.wait(self._settings.preprocess_drain_delay_s + grace_s + STOP_EXTRA_S)
            except subprocess.TimeoutExpired:
                child.kill()
            _let_go(child)

    def _look(self) -> None:
        for number in range(1, self._settings.preprocess_processes):
            child = self._children.get(number)
            if child is not None and (status := child.poll()) is not None:
                log.warning("front.process_died", process=number, status=status)
                _let_go(child)
                child = None
            if child is None:
                self._children[number] = self._spawn(number)

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        own = environment(self._settings, self._port, number)
        env = {**os.environ, **own, "SITS_CPUS": self._cpus}
        command = [sys.executable, "-m", "sits_preprocess", TIED]
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE)  # noqa: S603 - ourselves

    def __repr__(self) -> str:
        return f"<Workers {len(self._children)} children on port {self._port}>"


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Close what it is tied to."""
    if child.stdin is not None:
        child.stdin.close()


def environment(settings: PreprocessSettings, port: int, number: int) -> Mapping[str, str]:
    """What is different for the `number`-th child."""
    return {
        "SITS_PREPROCESS_PROCESSES": "1",
        "SITS_PREPROCESS_REUSE_PORT": "true",
        "SITS_PREPROCESS_BIND": f"{settings.preprocess_bind.rpartition(':')[0]}:{port}",
        "SITS_PREPROCESS_METRICS_BIND": shifted(settings.preprocess_metrics_bind, number),
        "SITS_PREPROCESS_CONTROL_BIND": shifted(settings.preprocess_control_bind, number),
    }


def shifted(bind: str, number: int) -> str:
    """`bind` with a port of its own; port 0 is any free one for everybody."""
    host, _, port = bind.rpartition(":")
    return f"{host}:{int(port) + PORT_STEP * number if int(port) else 0}"


def end_with(parent: int, stop: threading.Event) -> None:
    """Set `stop` once `parent`, a descriptor that a living parent holds open, is at its end."""

    def wait() -> None:
        # Not through a file object, whose lock this thread would hold when the process ends.
        while os.read(parent, 64):
            pass
        stop.set()

    threading.Thread(target=wait, name="parent watch", daemon=True).start()
