"""Generate `libs/protos/sits_protos` from `protos/`. `--check` only compares."""

import argparse
import filecmp
import os
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "protos"
TARGET = ROOT / "libs" / "protos"
DEFAULT_POOL = "_descriptor_pool.Default()"
OIP_POOL_IMPORT = "from sits_protos.oip.pool import POOL as _POOL\n"


def generate(out: Path) -> None:
    """Write the modules of every .proto below `out`."""
    # protoc looks for its plugins on the PATH; ours are beside this interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    files = sorted(str(p.relative_to(SOURCES)) for p in SOURCES.rglob("*.proto"))
    args = ["protoc", f"-I{SOURCES}", f"--python_out={out}", f"--mypy_out=quiet:{out}"]
    contracts = [f for f in files if "/v1/" in f]
    run(args + files)
    run([*args[:2], f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}", *contracts])
    for module in (out / "sits_protos" / "oip").glob("*_pb2.py"):
        use_private_pool(module)
    for module in (out / "sits_protos" / "v1").glob("*_pb2_grpc.py*"):
        if "Servicer" not in module.read_text():
            module.unlink()


def run(args: list[str]) -> None:
    if protoc.main(args) != 0:
        sys.exit("protoc failed, see above")


def use_private_pool(module: Path) -> None:
    """`package inference` is registered by several clients; ours stays apart."""
    text = module.read_text()
    if DEFAULT_POOL not in text:
        sys.exit(f"{module.name}: the generator no longer writes {DEFAULT_POOL}")
    head, rest = text.split("DESCRIPTOR = ", 1)
    module.write_text(
        head + OIP_POOL_IMPORT + "DESCRIPTOR = " + rest.replace(DEFAULT_POOL, "_POOL")
    )


def compare(fresh: Path) -> list[str]:
    wanted = {p.relative_to(fresh) for p in fresh.rglob("*_pb2*")}
    present = {
        p.relative_to(TARGET) for p in TARGET.rglob("*_pb2*") if "__pycache__" not in p.parts
    }
    changed = {p for p in wanted & present if not filecmp.cmp(fresh / p, TARGET / p, shallow=False)}
    return sorted(str(p) for p in (wanted ^ present) | changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when generated code is stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as tmp:
        generate(Path(tmp))
        if not check:
            shutil.copytree(tmp, TARGET, dirs_exist_ok=True)
        elif stale := compare(Path(tmp)):
            sys.exit("generated code is stale, run `make protos`: " + ", ".join(stale))


if __name__ == "__main__":
    main()
