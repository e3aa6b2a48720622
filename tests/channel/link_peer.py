"""The client end of a link in a process of its own: `link_peer.py ADDRESS`; says READY."""

import sys
import threading

from sits_channel.link import Link, LinkClient
from sits_core.rpc import open_channel
from sits_core.settings import Settings


class Listener:
    def opened(self, link: Link) -> None:
        link.write(b"hello")
        print("READY", flush=True)

    def received(self, link: Link, message: bytes) -> None: ...
    def closed(self, link: Link, reason: str) -> None: ...


def main() -> None:
    settings = Settings()
    client = LinkClient(
        sys.argv[1],
        "/test.Service/Link",
        Listener(),
        lambda address: open_channel(address, settings),
    )
    client.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
