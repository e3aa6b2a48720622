"""The tracer of a process: what it samples and where its spans go."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import structlog
from prometheus_client import CollectorRegistry

from sits_core import otlp_target
from sits_core.identity import host_id
from sits_core.otlp import SpanExporter
from sits_core.otlp_target import OtelError
from sits_core.settings import Settings, node_name
from sits_core.tracing import Attribute, Tracer

log = structlog.get_logger()


@contextmanager
def open_tracer(
    service: str, settings: Settings, registry: CollectorRegistry, instance_id: str
) -> Iterator[Tracer]:
    """The tracer of a process, as SITS_TRACE_* and the OTEL_ variables want it.

    With an endpoint its spans are exported until the context is left. A wrong OTEL_
    variable is logged; the service then runs without what it was for.
    """
    tracer = Tracer(service, settings.trace_ring, settings.trace_ratio)
    exporter = _configure(tracer, instance_id)
    if exporter is None:
        yield tracer
        return
    registry.register(exporter)
    tracer.add_sink(exporter.offer)
    exporter.start()
    try:
        yield tracer
    finally:
        exporter.close()


def _configure(tracer: Tracer, instance_id: str) -> SpanExporter | None:
    try:
        otlp_target.apply_sampler(tracer, os.environ)
    except OtelError as error:
        log.error("tracing.sampler_ignored", reason=str(error))
    try:
        target = otlp_target.target(os.environ)
    except OtelError as error:
        log.error("otlp.disabled", reason=str(error))
        return None
    if target is None:
        return None
    log.info("otlp.enabled", endpoint=target.url, protocol=target.protocol, hint=target.hint)
    return SpanExporter(target, _resource(tracer.service, instance_id))


def _resource(service: str, instance_id: str) -> dict[str, Attribute]:
    return {
        "service.name": f"sits-{service}",
        "service.version": version("sits-core"),
        "service.instance.id": instance_id,
        "host.id": host_id(),
        "host.name": node_name(),
        "process.pid": os.getpid(),
    }
