"""The chart, rendered by helm where it is installed, and compose.yaml."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])


@dataclass(frozen=True)
class Manifests:
    """Objects of a rendered chart."""

    text: str

    @property
    def objects(self) -> Sequence[dict[str, Any]]:
        return [o for o in yaml.safe_load_all(self.text) if o]

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {o["metadata"]["name"]: o for o in self.objects if o["kind"] == kind}

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Component and pod specification of everything that runs."""
        for o in self.objects:
            if o["kind"] in ("Deployment", "DaemonSet"):
                template = o["spec"]["template"]
                component = template["metadata"]["labels"]["app.kubernetes.io/component"]
                yield component, template["spec"]
            elif o["kind"] == "Pod":
                yield "test", o["spec"]

    def pod(self, component: str) -> dict[str, Any]:
        return next(spec for name, spec in self.pods() if name == component)


class Chart:
    """`helm` on the chart; skips where there is none."""

    folder = ROOT / "helm/sits"
    kept = Path(__file__).parent / "rendered.yaml"

    def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        binary = os.environ.get("HELM") or shutil.which("helm", path=PATH)
        if binary is None:
            pytest.skip("no helm: make chart-tools, or name it with HELM")
        return subprocess.run([binary, *arguments], capture_output=True, text=True)

    def template(
        self, values: str = "values.yaml", version: str = "1.35.0", *sets: str
    ) -> subprocess.CompletedProcess[str]:
        more = [part for each in sets for part in ("--set-json", each)]
        options = ["-n", "prod", "-f", str(self.folder / values), "--kube-version", version]
        return self.helm("template", "mesh", str(self.folder), *options, *more)

    def render(self, values: str, version: str, *sets: str) -> Manifests:
        done = self.template(values, version, *sets)
        assert done.returncode == 0, done.stderr
        return Manifests(done.stdout)


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart()


@pytest.fixture(scope="session")
def rendered() -> Manifests:
    """The chart with its own values on the newest version. It is kept in a file, so that these
    rules are tested where there is no helm as well; test_chart.py keeps it up to date."""
    return Manifests(Chart.kept.read_text())


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())
