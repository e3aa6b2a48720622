"""Many clients, threads and streams at once; and the asyncio client."""

import asyncio
import concurrent.futures
import os
import queue
import threading

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from sits_core.settings import SettingsError


def rows(value: float, rows_: int = 1, kind=triton.InferInput) -> list[triton.InferInput]:
    x = np.full((rows_, 4), value, np.float32)
    tensor = kind("INPUT0", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    return [tensor]


def test_threads_share_one_client(served) -> None:
    client = served.client()

    def ask(number: int) -> float:
        result = client.infer("rows", rows(number), request_id=str(number))
        assert result.get_response().id == str(number)
        return float(result.as_numpy("OUTPUT0")[0, 0])

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(320))) == list(range(320))


def test_clients_stream_side_by_side(served) -> None:
    def stream(number: int) -> list[tuple[str, float]]:
        got: queue.Queue = queue.Queue()
        client = triton.InferenceServerClient(served.address)
        client.start_stream(lambda result, error: got.put((result, error)))
        for i in range(300):
            client.async_stream_infer("rows", rows(number * 1000 + i), request_id=str(i))
        answers = [got.get(timeout=30)[0] for _ in range(300)]
        client.stop_stream()
        client.close()
        return [(r.get_response().id, float(r.as_numpy("OUTPUT0")[0, 0])) for r in answers]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number, answers in enumerate(pool.map(stream, range(4))):
            assert answers == [(str(i), number * 1000 + i) for i in range(300)]
    served.until(lambda: not served.front.servicer.streams)


def test_streams_opened_and_closed_leave_nothing_behind(served) -> None:
    client, got = served.client(), queue.Queue()

    def once() -> None:
        client.start_stream(lambda result, error: got.put(error))
        client.async_stream_infer("rows", rows(1))
        assert got.get(timeout=20) is None
        client.stop_stream()

    once()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(50):
        once()
    served.until(lambda: len(os.listdir("/proc/self/fd")) <= files)
    served.until(lambda: threading.active_count() <= threads)
    assert not served.front.servicer.streams


def test_the_asyncio_client_infers_streams_and_sees_errors(served) -> None:
    async def talk() -> tuple[list[str], list[str], str]:
        async with triton_aio.InferenceServerClient(served.address) as client:
            x = rows(1, kind=triton_aio.InferInput)
            asked = [client.infer("rows", x, request_id=str(i)) for i in range(50)]
            unary = [r.get_response().id for r in await asyncio.gather(*asked)]

            async def requests():
                for i in range(50):
                    yield {"model_name": "rows", "inputs": x, "request_id": str(i)}

            streamed = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                streamed.append(result.get_response().id)
            with pytest.raises(InferenceServerException) as caught:
                await client.infer("nope", x)
            return unary, streamed, caught.value.status()

    unary, streamed, status = asyncio.run(talk())
    assert unary == streamed == [str(i) for i in range(50)]
    assert status == "StatusCode.NOT_FOUND"


def test_large_tensors_stream_too(served) -> None:
    sent = np.zeros(33 << 20, np.uint8)
    sent[-1] = 7
    tensor = triton.InferInput("INPUT0", sent.shape, "UINT8")
    tensor.set_data_from_numpy(sent)
    client, got = served.client(), queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)))
    client.async_stream_infer("any_UINT8", [tensor])
    client.async_stream_infer("rows", rows(1), request_id="small")
    result, error = got.get(timeout=30)
    assert error is None
    assert result.as_numpy("OUTPUT0")[-1] == 7
    assert got.get(timeout=30)[0].get_response().id == "small"
    client.stop_stream()


def test_a_large_message_does_not_hold_up_small_ones(served) -> None:
    """A BYTES tensor of a million elements takes a while to walk; it is not on their thread."""
    many = np.full(1_000_000, b"", dtype=object)
    tensor = triton.InferInput("INPUT0", many.shape, "BYTES")
    tensor.set_data_from_numpy(many)
    reading, client = threading.Event(), served.client()
    thread_of = {}

    def note(request):
        thread_of[request.model] = threading.current_thread().name
        reading.set()
        return [t._replace(name="OUTPUT0") for t in request.inputs]

    served.engine.runs |= {"any_BYTES": note, "rows": note}
    assert len(client.infer("any_BYTES", [tensor]).as_numpy("OUTPUT0")) == 1_000_000
    client.infer("rows", rows(1))
    assert thread_of["any_BYTES"].startswith("reader")
    assert thread_of["rows"].startswith("front")


def test_answers_given_before_the_stop_arrive(serve) -> None:
    for _ in range(5):
        served = serve()
        served.engine.hold = True
        client, errors = served.client(), []
        for _request in range(20):
            client.async_infer("rows", rows(1), lambda result, error, e=errors: e.append(error))
        served.engine.wait(lambda s=served: len(s.engine.taken) == 20)
        served.engine.finish_all()
        served.front.stop(5.0)
        served.until(lambda e=errors: len(e) == 20)
        assert errors == [None] * 20


def test_a_taken_port_is_a_settings_error(serve) -> None:
    served = serve()
    with pytest.raises(SettingsError, match="is another process using it"):
        serve(preprocess_bind=served.address)
