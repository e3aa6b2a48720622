"""Install the other servers that `sits bench mesh` measures, each into its own environment."""

import argparse
import shutil
import subprocess
import sys

from sits_bench import peers
from sits_bench.paths import BENCH


def install(peer: str) -> bool:
    """Make the environment of one peer anew; whether that worked. pip says what went wrong."""
    folder = peers.environment(peer)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    requirements = BENCH / "peers" / peer / "requirements.txt"
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "-r", str(requirements)],
    ]
    for command in commands:
        if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - ours
            return False
    peers.mark_installed(peer)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", nargs="*", help=f"of {', '.join(peers.NAMES)}; default: all")
    parser.add_argument("--again", action="store_true", help="even when it is there")
    options = parser.parse_args()
    if unknown := set(options.peer) - set(peers.NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(peers.NAMES)}")
    failed = []
    for peer in options.peer or peers.NAMES:
        if peers.installed(peer) and not options.again:
            print(f"{peer}: installed")
            continue
        print(f"{peer}: installing into {peers.environment(peer)} ...", flush=True)
        if not install(peer):
            failed.append(peer)
    if failed:
        print(f"not installed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
