"""Who this process is and which host it runs on."""

import os
import secrets
import socket
from functools import cache
from pathlib import Path


@cache
def host_id() -> str:
    """Identity of the running kernel: containers of one host agree, reboots differ."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def new_process_id(role: str) -> str:
    """Unique name of one process life. Pids repeat, names of dead processes do not."""
    return f"{role}-{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"
