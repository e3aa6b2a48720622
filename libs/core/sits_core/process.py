"""The life of a service process: settings, logs, signals, orderly exit."""

import gc
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

from sits_core import logs, memory
from sits_core.drain import Drain
from sits_core.processors import pin
from sits_core.settings import Settings, SettingsError, load
from sits_core.tuning import tune

S = TypeVar("S", bound=Settings)

log = structlog.get_logger()


def run(service: str, settings_class: type[S], serve: Callable[[S, Drain], None]) -> None:
    """Load settings, call `serve(settings, stop)`, exit.

    `serve` returns soon after `stop` is set, which SIGTERM, SIGINT and Control.Drain do;
    a second SIGINT ends the process at once. Exit status 2 = a wrong setting, said in one
    line on stderr.
    """
    stop = Drain()
    stop_on_signals(stop)
    threading.excepthook = _log_death
    try:
        settings = load(settings_class, service)
        logs.configure(service, settings)
        pin(settings.cpus)
        tune()
        # What is alive now lives as long as the process: spare the collector from it.
        gc.collect()
        gc.freeze()
        memory.trimmer().start()
        serve(settings, stop)
    except SettingsError as error:
        print(f"sits-{service}: {error}", file=sys.stderr)
        sys.exit(2)
    log.info("process.stopped")


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and SIGINT set `stop`."""

    def handle(number: int, _frame: object) -> None:
        stop.set()
        if number == signal.SIGINT:
            # Not for SIGTERM: supervisors may repeat it, and mean an orderly end.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _log_death(died: threading.ExceptHookArgs) -> None:
    """A thread that ends with an exception is a bug: it must stand in the log."""
    name = died.thread.name if died.thread is not None else "?"
    value = died.exc_value if died.exc_value is not None else died.exc_type()
    log.critical("thread.died", thread=name, exc_info=value)
