"""How this executor presents itself: in Hello on its links, and as a lease in the registry."""

from dataclasses import dataclass
from importlib.metadata import version

from sits_core.clock import now_ns
from sits_core.identity import host_id
from sits_core.numa import bound_node
from sits_core.settings import advertised
from sits_executor.device import device_name
from sits_executor.settings import ExecutorSettings
from sits_protos.v1.link_pb2 import Hello, Role
from sits_protos.v1.registry_pb2 import Lease


@dataclass(frozen=True, slots=True)
class Identity:
    """`probe` and `nonce` let a peer find out that it shares memory with us; empty = it cannot."""

    id: str
    address: str
    device: str
    numa_node: int
    started_ns: int
    probe: str = ""
    nonce: bytes = b""

    def hello(self, draining: bool = False) -> Hello:
        return Hello(
            role=Role.ROLE_EXECUTOR,
            id=self.id,
            host=host_id(),
            numa_node=self.numa_node,
            software_version=version("sits-executor"),
            control_address=self.address,
            device=self.device,
            shm_probe=self.probe,
            shm_nonce=self.nonce,
            draining=draining,
        )

    def lease(self, draining: bool) -> Lease:
        return Lease(
            role=Role.ROLE_EXECUTOR,
            id=self.id,
            address=self.address,
            control_address=self.address,
            host=host_id(),
            device=self.device,
            started_unix_ns=self.started_ns,
            draining=draining,
        )


def identify(
    settings: ExecutorSettings, process_id: str, probe: str = "", nonce: bytes = b""
) -> Identity:
    node = bound_node()
    device = device_name(settings.executor_device, node)
    return Identity(process_id, address(settings), device, node, now_ns(), probe, nonce)


def address(settings: ExecutorSettings) -> str:
    """Where others reach us."""
    return settings.executor_advertise or advertised(settings.executor_bind, settings)
