"""Builds an executor from its settings and runs it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from sits_channel.link import link_handler
from sits_channel.pool_metrics import PoolCollector
from sits_channel.ring_files import open_rings
from sits_channel.shared_memory import open_shared_memory
from sits_core.drain import Drain, finish
from sits_core.identity import new_process_id
from sits_core.keepers import LeaseKeeper
from sits_core.metrics import ProcessRegistry, serve_metrics
from sits_core.redis_registry import connect
from sits_core.rpc import Server, require_token_off_loopback
from sits_core.settings import SettingsError
from sits_core.telemetry import open_tracer
from sits_core.tls import metrics_tls
from sits_executor.control import Control
from sits_executor.drain import EXIT_DEVICE_LOST, end_anyway, refuse_waiting
from sits_executor.executor import Executor
from sits_executor.identity import identify
from sits_executor.payloads import Payloads
from sits_executor.settings import ExecutorSettings
from sits_protos.v1.control_pb2_grpc import add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import LinkMessage

log = structlog.get_logger()

_POLL_S = 0.02
_HANG_S = 10.0
"""Longest wait for a lost device to be let go of."""


def serve(settings: ExecutorSettings, stop: Drain) -> None:
    """Run until `stop`, then finish what was accepted. Raises `SystemExit` when the device was
    lost, so that a new process gets it back."""
    require_token_off_loopback(settings.executor_bind, settings, "SITS_EXECUTOR_BIND")
    _require_repository(settings)
    registry = ProcessRegistry()
    with ExitStack() as ended, open_executor(settings, registry) as executor, ExitStack() as stack:
        metrics_server = serve_metrics(
            settings.executor_metrics_bind, registry, metrics_tls(settings)
        )
        stack.callback(metrics_server.shutdown)
        loaded = threading.Event()
        shared = connect(settings, registry)
        if shared is not None:
            stack.callback(shared.close)
        lease = LeaseKeeper(shared, lambda: executor.identity.lease(stop.is_set()))
        known = lease if shared is not None else None
        executor.lost = stop.set
        control = Control(executor, stop, loaded, known, registry)
        server = stack.enter_context(_server(settings, executor, control, stop))
        lease.start()
        stack.callback(lease.stop)
        _load_first(settings, executor, stop)
        loaded.set()
        executor.reachable = lambda up: server.set_ready(up and not stop.is_set())
        server.set_ready(executor.up and not stop.is_set())
        stop.wait()
        if executor.scheduler.lost is not None:
            last_resort = end_anyway(settings.drain_grace_s + _HANG_S)
            ended.callback(last_resort.cancel)
        _drain(stop.grace_s(settings.drain_grace_s), executor, server, lease)

    if executor.scheduler.lost is not None:
        raise SystemExit(EXIT_DEVICE_LOST)


def _require_repository(settings: ExecutorSettings) -> None:
    """An empty repository is fine; a missing one is a typing error that would go unnoticed."""
    if settings.executor_triton_url:
        return
    if not Path(settings.executor_model_repository).is_dir():
        raise SettingsError(
            f"SITS_EXECUTOR_MODEL_REPOSITORY={settings.executor_model_repository}: no such folder"
        )


@contextmanager
def open_executor(settings: ExecutorSettings, registry: CollectorRegistry) -> Iterator[Executor]:
    """An executor with its shared memory and its tracer, started."""
    process_id = new_process_id("executor")
    with (
        open_shared_memory(
            settings.shm_dir, settings.redis_prefix, process_id, settings.executor_pool_bytes
        ) as memory,
        open_tracer("executor", settings, registry, process_id) as tracer,
    ):
        if memory.pool is not None:
            registry.register(PoolCollector(memory.pool))
        identity = identify(settings, process_id, memory.probe, memory.nonce)
        payloads = Payloads(memory.reader, memory.pool, settings.executor_pool_threshold_bytes)
        executor = Executor(settings, identity, payloads, tracer, registry)
        executor.start()
        try:
            yield executor
        finally:
            executor.stop()


def _server(
    settings: ExecutorSettings, executor: Executor, control: Control, stop: threading.Event
) -> Server:
    tokens = [token for name in ("mesh_token", "admin_token") if (token := settings.secret(name))]
    server = Server(settings.executor_bind, settings, tokens=tokens)
    execute = link_handler(
        "sits.v1.Execute",
        executor.listener,
        lambda: _greeting(executor, draining=stop.is_set()),
        open_rings(settings, executor.identity.id),
    )
    server.add_handler(execute, "sits.v1.Execute")
    server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
    return server


def _greeting(executor: Executor, *, draining: bool) -> bytes:
    return LinkMessage(hello=executor.identity.hello(draining)).SerializeToString()


def _load_first(settings: ExecutorSettings, executor: Executor, stop: threading.Event) -> None:
    """Wait for the models of the repository: until then we answer, but are not ready."""
    futures = executor.manager.load_all() if settings.executor_load == "all" else []
    while not all(future.done() for future in futures) and not stop.wait(_POLL_S):
        pass
    log.info("executor.loaded", catalog=repr(executor.catalog))


def _drain(grace_s: float, executor: Executor, server: Server, lease: LeaseKeeper) -> None:
    server.set_ready(False)
    executor.listener.greet(executor.identity.hello(draining=True))
    lease.wake()
    finished = finish(lambda: executor.listener.idle, grace_s)
    refused = refuse_waiting(executor.catalog.loaded(), executor.identity.id)
    log.info("executor.drained", finished=finished, refused_batches=refused)
