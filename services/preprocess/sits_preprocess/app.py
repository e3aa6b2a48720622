"""The front door as a process: built of its parts by hand, run until told to stop, drained."""

import sys
import threading
import time
from functools import partial
from importlib.metadata import version

import structlog

from sits_channel.pool_metrics import PoolCollector
from sits_channel.ring_files import open_rings
from sits_channel.shared_memory import SharedMemory, open_shared_memory
from sits_core.clock import Deadline, now_ns
from sits_core.drain import Drain
from sits_core.identity import host_id, new_process_id
from sits_core.keepers import Periodic
from sits_core.metrics import ProcessRegistry, serve_metrics
from sits_core.numa import bound_node
from sits_core.processors import PythonThreads
from sits_core.rpc import Server, open_channel, require_token_off_loopback, token_metadata
from sits_core.settings import advertised, parsed_file
from sits_core.telemetry import open_tracer
from sits_core.tls import metrics_tls
from sits_preprocess.control import Control
from sits_preprocess.dispatchers import Dispatchers, split_addresses
from sits_preprocess.engine import Engine
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.front import Front, build
from sits_preprocess.payloads import Payloads
from sits_preprocess.repository import Repository
from sits_preprocess.servicer import OIP
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.transport.native import IO_THREAD
from sits_preprocess.workers import TIED, Workers, end_with
from sits_protos.v1.control_pb2_grpc import add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import Hello, LinkMessage, Role
from sits_scheduling.tenant_file import parse_tenants, standard_tenants

DRAIN_POLL_S = 0.02
HEALTH_PERIOD_S = 0.5
STOP_GRACE_S = 1.0
"""For answers that are being written when the drain ends."""

log = structlog.get_logger()


def serve(settings: PreprocessSettings, stop: Drain) -> None:
    if TIED in sys.argv:
        end_with(sys.stdin.fileno(), stop)
    process_id = new_process_id("preprocess")
    memory = open_shared_memory(
        settings.shm_dir, settings.redis_prefix, process_id, settings.preprocess_pool_bytes
    )
    with memory as shared:
        serve_with(settings, stop, hello(settings, process_id, shared), shared)


def serve_with(settings: PreprocessSettings, stop: Drain, own: Hello, memory: SharedMemory) -> None:
    registry = ProcessRegistry()
    if memory.pool is not None:
        registry.register(PoolCollector(memory.pool))
    payloads = Payloads(memory, settings.preprocess_pool_threshold_bytes)
    greeting = LinkMessage(hello=own).SerializeToString
    tenants = parsed_file(settings, "tenants_file", parse_tenants) or standard_tenants()
    engine = Engine(settings, EngineMetrics(registry), greeting, payloads, tenants)
    token = settings.secret("mesh_token")
    dispatchers = Dispatchers(
        split_addresses(settings.preprocess_dispatchers),
        engine,
        partial(open_channel, settings=settings),
        token_metadata(token),
        rings=open_rings(settings, own.id),
    )
    repository = Repository(engine.catalog, dispatchers.control, token=token)
    tls = metrics_tls(settings)
    metrics = serve_metrics(settings.preprocess_metrics_bind, registry, tls)
    with open_tracer("preprocess", settings, registry, own.id) as tracer:
        front = build(settings, engine, repository, tracer, registry)
        control = Control(own, tracer, stop, engine, front.ready, registry)
        with control_server(settings, control) as server:
            engine.start()
            dispatchers.start()
            answer_until(stop, settings, front, server)
            dispatchers.stop()
            engine.stop()
    metrics.shutdown()


def answer_until(stop: Drain, settings: PreprocessSettings, front: Front, server: Server) -> None:
    """Serve the front port; then turn unready, refuse new requests, finish those accepted, and
    close it."""
    watch = Periodic(lambda: watch_health(front, server), HEALTH_PERIOD_S, "health")
    front.start()
    workers = Workers(settings, front.transport.port)
    python = PythonThreads(
        settings.preprocess_python_cpus,
        "SITS_PREPROCESS_PYTHON_CPUS",
        native=IO_THREAD,
        overloaded=lambda: front.inference.engine.refusing(now_ns()),
    )
    python.start()
    workers.start()
    watch.start()
    server.set_ready(True)
    log.info("front.serving", bind=settings.preprocess_bind, port=front.transport.port)
    stop.wait()
    server.set_ready(False)
    grace_s = stop.grace_s(settings.drain_grace_s)
    draining = threading.Thread(target=workers.stop, args=(grace_s,), name="workers")
    draining.start()
    front.servicer.leave()
    time.sleep(settings.preprocess_drain_delay_s)
    drain(front, grace_s)
    draining.join()
    watch.stop()
    python.stop()
    front.stop(STOP_GRACE_S)


def watch_health(front: Front, server: Server) -> None:
    """Tell those who ask for the front door's health, there and on the control port: probes
    may have no certificate that the front port takes."""
    front.health.refresh()
    server.set_service_ready(OIP, front.ready())


def drain(front: Front, grace_s: float) -> None:
    """Refuse new requests, and wait for those accepted."""
    limit = Deadline.after(grace_s)
    front.servicer.drain()
    while front.inference.open_requests and not limit.passed():
        time.sleep(DRAIN_POLL_S)


def control_server(settings: PreprocessSettings, control: Control) -> Server:
    bind = settings.preprocess_control_bind
    require_token_off_loopback(bind, settings, "SITS_PREPROCESS_CONTROL_BIND")
    tokens = [token for name in ("mesh_token", "admin_token") if (token := settings.secret(name))]
    server = Server(bind, settings, tokens=tokens)
    server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
    return server


def hello(settings: PreprocessSettings, process_id: str, memory: SharedMemory) -> Hello:
    return Hello(
        role=Role.ROLE_PREPROCESS,
        id=process_id,
        host=host_id(),
        numa_node=bound_node(),
        software_version=version("sits-preprocess"),
        control_address=advertised(settings.preprocess_control_bind, settings),
        shm_probe=memory.probe,
        shm_nonce=memory.nonce,
    )
