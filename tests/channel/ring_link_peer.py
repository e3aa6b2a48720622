"""A server of links in a process of its own, which echoes: `ring_link_peer.py DIRECTORY [PORT]`.

Says its port when it serves.
"""

import sys
import threading

from sits_channel.link import Link, link_handler
from sits_channel.ring_files import Rings
from sits_core.rpc import Server
from sits_core.settings import Settings


class Echo:
    def opened(self, link: Link) -> None: ...

    def received(self, link: Link, message: bytes) -> None:
        link.write(message)

    def closed(self, link: Link, reason: str) -> None: ...


def main() -> None:
    directory, port = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    rings = Rings(directory, "test", "server", 32 << 20)
    server = Server(f"127.0.0.1:{port or 0}", Settings())
    server.add_handler(link_handler("test.Service", Echo(), lambda: b"greeting", rings), "test")
    with server:
        print(server.port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
