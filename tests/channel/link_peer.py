"""The client end of a link in a process of its own; says READY.

`link_peer.py ADDRESS DIRECTORY`: the directory is for rings, empty = none.
"""

import sys
import threading

from sits_channel.link import Link, LinkClient
from sits_channel.ring_files import Rings
from sits_core.rpc import open_channel
from sits_core.settings import Settings


class Listener:
    def opened(self, link: Link) -> None:
        link.write(b"hello")
        print("READY", flush=True)

    def received(self, link: Link, message: bytes) -> None: ...
    def closed(self, link: Link, reason: str) -> None: ...


def main() -> None:
    settings, shm = Settings(), sys.argv[2]
    client = LinkClient(
        sys.argv[1],
        "/test.Service/Link",
        Listener(),
        lambda address: open_channel(address, settings),
        rings=Rings(shm, "test", "peer", settings.max_message_bytes) if shm else None,
    )
    client.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
