"""Which GPUs a model of this executor gets that needs several at once."""

import grpc

from sits_core.errors import from_rpc
from sits_core.identity import host_id
from sits_core.rpc import open_channel, token_metadata
from sits_executor.backends.base import LoadError
from sits_executor.settings import ExecutorSettings
from sits_protos.v1.control_pb2 import ChooseGangRequest
from sits_protos.v1.control_pb2_grpc import ControlStub

TIMEOUT_S = 10.0


class GangChooser:
    """Those that the settings name, or those that a dispatcher chooses on this host by the
    published weights; it gives them to nobody else while we are linked to it."""

    def __init__(self, settings: ExecutorSettings, executor: str) -> None:
        self._settings, self._executor = settings, executor
        named = settings.executor_gang_devices.split(",")
        self._named = [name.strip() for name in named if name.strip()]

    def __call__(self, size: int) -> list[str]:
        """Names as topology has them. Raises `LoadError`."""
        if self._named:
            if len(self._named) < size:
                raise LoadError(
                    f"the model asks for a gang of {size} GPUs, SITS_EXECUTOR_GANG_DEVICES "
                    f"names {len(self._named)}"
                )
            return self._named[:size]
        if not self._settings.executor_gang_dispatcher:
            raise LoadError(
                f"the model asks for a gang of {size} GPUs: set SITS_EXECUTOR_GANG_DISPATCHER to "
                "a dispatcher that chooses them, or SITS_EXECUTOR_GANG_DEVICES to their names"
            )
        return self._asked(size)

    def _asked(self, size: int) -> list[str]:
        settings = self._settings
        token = settings.secret("admin_token") or settings.secret("mesh_token")
        request = ChooseGangRequest(size=size, host=host_id(), holder=self._executor)
        with open_channel(settings.executor_gang_dispatcher, settings) as channel:
            try:
                answer = ControlStub(channel).ChooseGang(
                    request, timeout=TIMEOUT_S, metadata=token_metadata(token)
                )
            except grpc.RpcError as error:
                raise LoadError(f"no gang of {size} GPUs: {from_rpc(error).message}") from None
        return list(answer.chosen.devices)
