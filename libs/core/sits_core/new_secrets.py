"""`python -m sits_core.new_secrets FOLDER`: makes the secrets of a deployment that has none yet.

Each lies in a file of its own: mesh_token, admin_token, redis_password, and redis.conf with the
password in it, since the command line of a server shows in process lists.
"""

import os
import secrets
import sys
from pathlib import Path

NAMES = ("mesh_token", "admin_token", "redis_password")
FOR_THE_GROUP = 0o440


def create(folder: Path) -> list[str]:
    """Names of the files made; what is there stays as it is."""
    made = [name for name in NAMES if write_new(folder / name, secrets.token_urlsafe(32) + "\n")]
    password = (folder / "redis_password").read_text().strip()
    if write_new(folder / "redis.conf", f"requirepass {password}\n"):
        made.append("redis.conf")
    return made


def write_new(path: Path, content: str) -> bool:
    """Whether there was no such file. It appears whole: others may be waiting for it."""
    if path.exists():
        return False
    half = path.with_suffix(".new")
    half.write_text(content)
    half.chmod(FOR_THE_GROUP)
    os.replace(half, path)
    return True


def main() -> int:
    if len(sys.argv) != 2:
        print("expected one argument: a folder", file=sys.stderr)
        return 2
    for name in create(Path(sys.argv[1])):
        print(f"made {name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
