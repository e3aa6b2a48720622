"""What no server on this HTTP/2 library can do without: takes calls and refuses each at once.

`python -m sits_bench.refuse_server PORT`. It looks at nothing and says the same to all.
"""

import signal
import sys
from types import FrameType

from pygrpc_native import NativeGrpcFront

from sits_bench.loadgen import INFER

EVENTS = 512
"""Calls taken at once, as the front door does under overload."""
RESOURCE_EXHAUSTED = 8
POLL_MS = 500
UNLIMITED = (1 << 31) - 1


def serve(bind: str) -> None:
    front = NativeGrpcFront(
        bind, [(INFER, False)], io_threads=1, call_details=True, max_concurrent_streams=UNLIMITED
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        front.close()

    signal.signal(signal.SIGTERM, stop)
    front.start()
    while (events := front.recv_batch_details(EVENTS, POLL_MS)) is not None:
        for _kind, call_id, _method, message, _key, _details in events:
            if message is not None:
                front.fail(call_id, RESOURCE_EXHAUSTED, "refused", [])


if __name__ == "__main__":
    serve(f"127.0.0.1:{sys.argv[1]}")
