"""Puts the front port together from settings and an engine."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from sits_core.settings import SettingsError, is_loopback
from sits_core.tls import ServerTls
from sits_core.tracing import Tracer
from sits_preprocess.access import Access, read_api_keys
from sits_preprocess.accounts import Accounts
from sits_preprocess.admission import Admission
from sits_preprocess.cache.engine import CachedEngine
from sits_preprocess.cache.opening import open_cache
from sits_preprocess.front_tls import front_tls
from sits_preprocess.health import Health
from sits_preprocess.inference import Engine, Inference, OpenLimits
from sits_preprocess.metadata import Metadata
from sits_preprocess.methods import Methods, Services
from sits_preprocess.reflection import Reflection
from sits_preprocess.repository import Repository
from sits_preprocess.server_settings import LogSettings, TraceSettings
from sits_preprocess.servicer import BATCHES, HEALTH, OIP, Servicer
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.shared_memory import Regions
from sits_preprocess.statistics import Statistics
from sits_preprocess.transport.call import Limits, Routes, Transport
from sits_preprocess.transport.grpcio import GrpcioTransport
from sits_preprocess.transport.native import NativeTransport

READERS = 2
OPERATORS = 8
"""Threads for calls that wait, such as a model load."""


@dataclass(frozen=True, slots=True)
class Front:
    """The front port, not started yet."""

    transport: Transport
    servicer: Servicer
    inference: Inference
    health: Health
    regions: Regions
    ready: Callable[[], bool]
    pools: tuple[ThreadPoolExecutor, ...]
    cache: CachedEngine | None

    def start(self) -> None:
        """Raises `SettingsError` when it cannot listen."""
        if self.cache is not None:
            self.cache.start()
        self.transport.start()

    def stop(self, grace_s: float) -> None:
        self.health.end()
        self.transport.stop(grace_s)
        if self.cache is not None:
            self.cache.stop()
        for pool in self.pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self.regions.close()


def build(
    settings: PreprocessSettings,
    engine: Engine,
    repository: Repository,
    tracer: Tracer,
    registry: CollectorRegistry,
) -> Front:
    """Raises `SettingsError` for an API key file, TLS or Redis settings that cannot be used."""
    access, regions, statistics = access_of(settings), regions_of(settings), Statistics()
    tracing = TraceSettings(tracer, engine.catalog)
    admission = Admission(
        engine.catalog,
        access,
        regions,
        tracing.incoming,
        tracer.new_span_id,
        settings.preprocess_default_timeout_s,
    )
    accounts = Accounts(registry, statistics, tracer)
    limits = OpenLimits(settings.max_message_bytes, settings.preprocess_open_bytes)
    cache = open_cache(settings, engine, statistics, registry)
    if cache is not None:
        repository.loaded = cache.pause
    inference = Inference(cache or engine, admission, accounts, limits)
    inference.engine.deliver_to(inference.answered)
    metadata = metadata_of(settings, engine)

    def ready() -> bool:
        return not inference.leaving and metadata.server_ready()

    services = Services(
        ready=ready,
        metadata=metadata,
        statistics=statistics,
        regions=regions,
        repository=repository,
        trace_settings=tracing,
        log_settings=LogSettings(settings.log_level),
        access=access,
    )
    readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
    operators = ThreadPoolExecutor(OPERATORS, thread_name_prefix="operator")
    health = Health(ready, (OIP, BATCHES))
    reflection = Reflection((OIP, BATCHES, HEALTH)) if settings.reflection else None
    servicer = Servicer(inference, Methods(services, operators), health, reflection, readers)
    transport = transport_of(settings, servicer.routes())
    pools = (readers, operators)
    return Front(transport, servicer, inference, health, regions, ready, pools, cache)


def access_of(settings: PreprocessSettings) -> Access:
    return Access(
        read_api_keys(settings.preprocess_api_keys_file),
        settings.secret("admin_token"),
        loopback=is_loopback(settings.preprocess_bind),
        default_tenant=settings.preprocess_default_tenant,
    )


def regions_of(settings: PreprocessSettings) -> Regions:
    return Regions(
        settings.preprocess_allow_client_shm,
        settings.shm_dir,
        max_read_bytes=settings.max_message_bytes,
    )


def metadata_of(settings: PreprocessSettings, engine: Engine) -> Metadata:
    """One ready model makes the server ready: a model that loads somewhere in the mesh must
    not take every front door out of service."""
    return Metadata(
        engine.catalog,
        version("sits-preprocess"),
        client_shm=settings.preprocess_allow_client_shm,
        strict=False,
    )


def transport_of(settings: PreprocessSettings, routes: Routes) -> Transport:
    limits = Limits(
        settings.max_message_bytes,
        settings.preprocess_stream_requests,
        settings.preprocess_stream_bytes,
        settings.preprocess_max_connection_age_s,
        settings.preprocess_reuse_port or settings.preprocess_processes > 1,
        settings.preprocess_connection_calls,
    )
    if limits.shared_port and settings.preprocess_allow_client_shm:
        raise SettingsError(
            "SITS_PREPROCESS_ALLOW_CLIENT_SHM needs a front port of one process: the others "
            "would not know what a client registered with one of them"
        )
    tls = front_tls(settings)
    if transport_name(settings, tls) == "grpcio":
        if settings.preprocess_io_nice:
            raise SettingsError("SITS_PREPROCESS_IO_NICE needs the native transport")
        return GrpcioTransport(settings.preprocess_bind, routes, limits, tls)
    if limits.connection_age_s:
        raise SettingsError("SITS_PREPROCESS_MAX_CONNECTION_AGE_S needs the grpcio transport")
    io_threads = settings.preprocess_io_threads or _io_threads()
    nice = settings.preprocess_io_nice
    return NativeTransport(settings.preprocess_bind, routes, limits, io_threads, nice)


def transport_name(settings: PreprocessSettings, tls: ServerTls | None) -> str:
    """The transport that was chosen, or the fast one where it can do what is asked for."""
    if settings.preprocess_transport != "auto":
        return settings.preprocess_transport
    needs_grpcio = tls is not None or settings.preprocess_max_connection_age_s > 0
    return "grpcio" if needs_grpcio else "native"


def _io_threads() -> int:
    """One does 40,000 small requests/s, more than Python can answer; a second one only adds
    hand-overs until there are processors to spare."""
    return max(1, len(os.sched_getaffinity(0)) // 8)
