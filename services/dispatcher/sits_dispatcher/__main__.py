"""Builds a dispatcher from its settings and runs it."""

import threading

import structlog

from sits_dispatcher.settings import DispatcherSettings

log = structlog.get_logger()

TICK_S = 0.05


def serve(settings: DispatcherSettings, stop: threading.Event) -> None:
    """Run until `stop`."""
