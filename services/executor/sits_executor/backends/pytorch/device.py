"""The seam to the device that PyTorch runs on: CUDA, or the CPU in its place.

Streams, events, pinned memory and captured graphs exist on CUDA only; `CpuDevice` does the same
at once, which is right for models on the CPU and for tests of everything above this file.
"""

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, dtype


class Event(Protocol):
    """Done when everything that its stream was given before `record` is done."""

    def record(self, stream: "Stream") -> None: ...
    def query(self) -> bool: ...


class Graph(Protocol):
    def replay(self) -> None: ...


Stream = object
Pool = object
"""A handle of PyTorch's own."""


class Place(NamedTuple):
    """Where a contiguous tensor lies, looked up once."""

    tensor: Tensor
    pointer: int
    nbytes: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Place":
        return cls(tensor, tensor.data_ptr(), tensor.nbytes)


class Memory(NamedTuple):
    """Bytes of device memory: in tensors, held by this process, and the most it may hold."""

    allocated: int
    reserved: int
    budget: int


class TorchDevice(Protocol):
    """`torch` is where tensors go; `captures` says whether graphs pay off here."""

    torch: torch.device
    captures: bool

    def stream(self) -> Stream: ...
    def on(self, stream: Stream) -> AbstractContextManager[object]: ...
    def use(self, stream: Stream) -> None:
        """As `on`, and this thread stays on it: what a batch costs is counted in microseconds."""
        ...

    def event(self) -> Event: ...
    def copy(self, stream: Stream, target: Place, source: Place) -> None:
        """Between pinned host and device memory, in the order of the stream, without waiting.
        Both are of equal size, and stay alive until it is done."""
        ...

    def host(self, shape: tuple[int, ...], kind: dtype) -> Tensor:
        """Host memory that copies run from and to beside other work."""
        ...

    def pool(self) -> Pool:
        """Memory that graphs share, which therefore never run at the same time."""
        ...

    def capture(self, stream: Stream, pool: Pool, run: Callable[[], None]) -> Graph: ...
    def wait(self, stream: Stream) -> None: ...
    def settle(self) -> None:
        """Wait for what this thread gave to the default stream."""
        ...

    def memory(self) -> Memory: ...


class CudaEvent:
    def __init__(self) -> None:
        self._event = torch.cuda.Event()

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, torch.cuda.Stream)  # noqa: S101 - for the type only
        self._event.record(stream)

    def query(self) -> bool:
        return self._event.query()


class CudaDevice:
    """One GPU. `memory_bytes` 0 = all of it. Sets that limit for the whole process."""

    captures = True

    def __init__(self, index: int, memory_bytes: int = 0) -> None:
        self.torch = torch.device("cuda", index)
        torch.cuda.set_device(self.torch)
        total = torch.cuda.get_device_properties(index).total_memory
        self._budget = min(memory_bytes, total) if memory_bytes else total
        torch.cuda.set_per_process_memory_fraction(self._budget / total, index)
        self._capturing = threading.Lock()
        # PyTorch's copy_ costs the CPU several times as much. It never waits, so that the
        # interpreter need not be given away for it (PyDLL).
        self._driver = ctypes.PyDLL("libcuda.so.1")
        self._memcpy = self._driver.cuMemcpyAsync
        self._memcpy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]

    def stream(self) -> Stream:
        return torch.cuda.Stream(self.torch)

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        assert isinstance(stream, torch.cuda.Stream)  # noqa: S101 - for the type only
        return torch.cuda.stream(stream)

    def use(self, stream: Stream) -> None:
        assert isinstance(stream, torch.cuda.Stream)  # noqa: S101 - for the type only
        torch.cuda.set_stream(stream)

    def event(self) -> Event:
        return CudaEvent()

    def copy(self, stream: Stream, target: Place, source: Place) -> None:
        assert isinstance(stream, torch.cuda.Stream)  # noqa: S101 - for the type only
        code = self._memcpy(target.pointer, source.pointer, source.nbytes, stream.cuda_stream)
        if code:
            raise RuntimeError(f"CUDA error: {self._text(code)}")

    def _text(self, code: int) -> str:
        found = ctypes.c_char_p()
        self._driver.cuGetErrorString(code, ctypes.byref(found))
        return (found.value or b"").decode() or f"number {code}"

    def host(self, shape: tuple[int, ...], kind: dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, pin_memory=True)

    def pool(self) -> Pool:
        return torch.cuda.graph_pool_handle()

    def capture(self, stream: Stream, pool: Pool, run: Callable[[], None]) -> Graph:
        """`thread_local`: what other threads launch meanwhile neither fails nor is recorded.
        One at a time, since PyTorch's random generator knows one capture only."""
        graph = torch.cuda.CUDAGraph()
        handle = cast("torch.cuda._POOL_HANDLE", pool)
        with self._capturing, _no_collection(), self.on(stream):
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def wait(self, stream: Stream) -> None:
        assert isinstance(stream, torch.cuda.Stream)  # noqa: S101 - for the type only
        stream.synchronize()

    def settle(self) -> None:
        torch.cuda.current_stream(self.torch).synchronize()

    def memory(self) -> Memory:
        return Memory(
            torch.cuda.memory_allocated(self.torch),
            torch.cuda.memory_reserved(self.torch),
            self._budget,
        )


class DoneEvent:
    """The CPU has done it when the call returns."""

    def record(self, stream: Stream) -> None:
        return None

    def query(self) -> bool:
        return True


class Rerun(NamedTuple):
    """In place of a graph: does the same work again."""

    run: Callable[[], None]

    def replay(self) -> None:
        with torch.inference_mode():
            self.run()


class CpuDevice:
    """`captures` True lets tests and dry runs go the way that CUDA goes."""

    def __init__(self, *, captures: bool = False) -> None:
        self.torch, self.captures = torch.device("cpu"), captures

    def stream(self) -> Stream:
        return object()

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()

    def use(self, stream: Stream) -> None:
        return None

    def event(self) -> Event:
        return DoneEvent()

    def copy(self, stream: Stream, target: Place, source: Place) -> None:
        target.tensor.copy_(source.tensor)

    def host(self, shape: tuple[int, ...], kind: dtype) -> Tensor:
        return torch.empty(shape, dtype=kind)

    def pool(self) -> Pool:
        return object()

    def capture(self, stream: Stream, pool: Pool, run: Callable[[], None]) -> Graph:
        run()
        return Rerun(run)

    def wait(self, stream: Stream) -> None:
        return None

    def settle(self) -> None:
        return None

    def memory(self) -> Memory:
        return Memory(0, 0, 0)


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector could free a graph or a tensor in the middle, which a capture forbids."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
