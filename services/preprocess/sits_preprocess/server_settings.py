"""The trace and logging extensions: settings that clients read and change while serving."""

import logging
import threading
from dataclasses import replace

import structlog

from sits_core.errors import NotFound
from sits_core.tracing import TraceContext, Tracer
from sits_preprocess.catalog import Catalog
from sits_preprocess.metadata import knows
from sits_preprocess.setting_values import (
    UNLIMITED,
    Log,
    Trace,
    changed_log,
    changed_trace,
    log_response,
    trace_response,
)
from sits_protos.oip import grpc_service_pb2 as pb

DEFAULT_RATIO = 0.001
"""When tracing was off at the start and is switched on without a rate."""


class TraceSettings:
    """Which share of requests starts a trace, for all models or for one.

    `trace_level` TIMESTAMPS or OFF, `trace_rate` n = one of n requests, `trace_count` =
    traces still to start (-1 = no end). A client's own trace context decides for its
    request and is not counted. The edge calls `incoming` in place of `Tracer.incoming`.
    """

    def __init__(self, tracer: Tracer, catalog: Catalog) -> None:
        self._tracer, self._catalog = tracer, catalog
        self._start = Trace(tracer.ratio > 0, tracer.ratio or DEFAULT_RATIO, UNLIMITED)
        self._all = Trace()
        self._models: dict[str, Trace] = {}
        self._shares: dict[str, float] = {}
        self._lock = threading.Lock()

    def incoming(self, model: str, traceparent: str | None) -> TraceContext | None:
        """Context of a request for `model`; None = not sampled."""
        context = self._tracer.incoming(traceparent, self._shares.get(model))
        started_here = context is not None and not any(context.span_id)
        return None if started_here and not self._take_one(model) else context

    def update(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Change all the settings named, or none when one is wrong; answer with all of them.

        A setting without a value is cleared: a model's follows the one for all models, that
        one the settings of the process. An empty model name means all models.
        """
        name = request.model_name
        if name and not knows(self._catalog, name):
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        with self._lock:
            changed = self._models.get(name, Trace()) if name else self._all
            for key, values in request.settings.items():
                changed = changed_trace(changed, key, list(values.value))
            self._keep(name, changed)
            return trace_response(self._effective(name))

    def _keep(self, name: str, changed: Trace) -> None:
        if not name:
            self._all = changed
        else:
            self._models[name] = changed
        existing = {model.name for model in self._catalog.models()}
        self._models = {n: t for n, t in self._models.items() if n in existing and t != Trace()}
        self._refresh()

    def _refresh(self) -> None:
        self._tracer.ratio = self._effective("").share
        self._shares = {name: self._effective(name).share for name in self._models}

    def _effective(self, name: str) -> Trace:
        return self._models.get(name, Trace()).over(self._all).over(self._start)

    def _take_one(self, name: str) -> bool:
        """Count a trace that is about to start; False when the last one was taken."""
        with self._lock:
            own = self._models.get(name)
            counted = own if own is not None and own.left is not None else self._all
            if counted.left in (None, UNLIMITED):
                return True
            if counted.left == 0:
                return False
            self._count_down(name if counted is own else "", counted)
            return True

    def _count_down(self, name: str, counted: Trace) -> None:
        one_less = replace(counted, left=(counted.left or 1) - 1)
        if name:
            self._models[name] = one_less
        else:
            self._all = one_less
        if one_less.left == 0:
            self._refresh()


class LogSettings:
    """Which log lines the process writes. `level` is the setting it started with.

    `log_verbose_level` above 0 = debug lines too. Both values of `log_format` mean the
    process's own format, whose times are ISO 8601.
    """

    def __init__(self, level: str) -> None:
        severity = logging.getLevelNamesMapping()[level.upper()]
        self._log = Log(
            info=severity <= logging.INFO,
            warning=severity <= logging.WARNING,
            error=severity <= logging.ERROR,
            verbose_level=int(severity <= logging.DEBUG),
        )
        self._muted: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def update(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Change all the settings named, or none when one is wrong; answer with all of them."""
        with self._lock:
            changed = self._log
            for key, value in request.settings.items():
                changed = changed_log(changed, key, value)
            if changed != self._log:
                self._log = changed
                self._apply()
            return log_response(changed)

    def _apply(self) -> None:
        """The lowest level that writes costs the levels below it nothing; levels above it that
        are switched off are dropped by a processor."""
        methods = self._log.methods()
        lowest = next((name for name, writes in methods.items() if writes), "critical")
        self._muted = frozenset(name for name, writes in methods.items() if not writes)
        others = [p for p in structlog.get_config()["processors"] if p != self._mute]
        structlog.configure(
            processors=[self._mute, *others],
            wrapper_class=structlog.make_filtering_bound_logger(lowest),
        )

    def _mute(
        self, _logger: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if method in self._muted:
            raise structlog.DropEvent
        return event
