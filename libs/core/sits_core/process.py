"""The life of a service process: settings, logs, signals, orderly exit."""

import gc
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

from sits_core import logs
from sits_core.settings import Settings, SettingsError, load

S = TypeVar("S", bound=Settings)

log = structlog.get_logger()


def run(service: str, settings_class: type[S], serve: Callable[[S, threading.Event], None]) -> None:
    """Load settings, call `serve(settings, stop)`, exit.

    `serve` returns soon after `stop` is set, which SIGTERM, SIGINT and Control.Drain do.
    Exit status 2 = a wrong setting, said in one line on stderr.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = load(settings_class, service)
        logs.configure(service, settings)
        # What is alive now lives as long as the process: spare the collector from it.
        gc.collect()
        gc.freeze()
        serve(settings, stop)
    except SettingsError as error:
        print(f"sits-{service}: {error}", file=sys.stderr)
        sys.exit(2)
    log.info("process.stopped")
