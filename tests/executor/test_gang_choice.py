"""Where an executor gets the GPUs of a gang from, and what it says when it gets none."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from sits_core.errors import Unavailable
from sits_core.identity import host_id
from sits_core.testing import free_port
from sits_executor.backends.base import LoadError
from sits_executor.gangs import GangChooser
from sits_executor.settings import ExecutorSettings
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server


class Dispatcher(ControlServicer):
    def __init__(self) -> None:
        self.asked: list[pb.ChooseGangRequest] = []
        self.refusal = ""
        self.lock = threading.Lock()

    def ChooseGang(self, request, context):
        self.asked.append(request)
        if self.refusal:
            error = Unavailable(self.refusal, reason="NO_GANG")
            context.set_trailing_metadata(error.trailers())
            context.abort(error.status, error.message)
        return pb.ChooseGangResponse(chosen=pb.Gang(devices=["GPU-b", "GPU-a"]))


@pytest.fixture
def dispatcher() -> Iterator[tuple[Dispatcher, str]]:
    servicer, address = Dispatcher(), f"127.0.0.1:{free_port()}"
    server = grpc.server(ThreadPoolExecutor(2))
    add_ControlServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    yield servicer, address
    server.stop(0)


def chooser(**settings: str) -> GangChooser:
    return GangChooser(ExecutorSettings(**settings), "executor-1")


def test_a_dispatcher_chooses_on_this_host_for_this_executor(dispatcher):
    servicer, address = dispatcher
    assert chooser(executor_gang_dispatcher=address)(2) == ["GPU-b", "GPU-a"]
    (asked,) = servicer.asked
    assert (asked.size, asked.host, asked.holder) == (2, host_id(), "executor-1")


def test_what_the_dispatcher_refuses_fails_the_load_with_its_reason(dispatcher):
    servicer, address = dispatcher
    servicer.refusal = "no gang of 4 GPUs is free"
    with pytest.raises(LoadError, match="no gang of 4 GPUs: no gang of 4 GPUs is free"):
        chooser(executor_gang_dispatcher=address)(4)


def test_named_devices_are_taken_in_order_without_asking(dispatcher):
    servicer, address = dispatcher
    own = chooser(executor_gang_devices="GPU-1, GPU-2,GPU-3", executor_gang_dispatcher=address)
    assert own(2) == ["GPU-1", "GPU-2"]
    assert servicer.asked == []
    with pytest.raises(LoadError, match="SITS_EXECUTOR_GANG_DEVICES names 3"):
        own(4)


def test_without_either_it_is_said_what_to_set():
    with pytest.raises(LoadError, match="SITS_EXECUTOR_GANG_DISPATCHER"):
        chooser()(2)
