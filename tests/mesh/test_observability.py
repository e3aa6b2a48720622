"""Alerts and the dashboard ask for what a running mesh exports: names, labels and all."""

import json
import re
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import tensor

pytestmark = pytest.mark.mesh

DEPLOY = Path(__file__).parents[2] / "deploy"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
PROMETHEUS_OWN = {"job", "instance"}
"""Labels that the scrape adds."""

Labels = Mapping[str, Set[str]]


def queries() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    panels = json.loads((DEPLOY / "grafana/dashboards/sits.json").read_text())["panels"]
    asked = [rule["expr"] for group in groups for rule in group["rules"]]
    return asked + [t["expr"] for panel in panels for t in panel.get("targets", ())]


@pytest.fixture(scope="module")
def exported(mesh: Mesh) -> Labels:
    """Labels of each series by its name, of all services, after a request."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        client.infer("brief", [tensor(np.ones((1, 4), np.float32))])
    book = mesh.addresses
    ports = [book.front_metrics, book.admin, book.topology_metrics, *(m for _, m in book.executors)]
    found: dict[str, set[str]] = defaultdict(set)
    for port in ports:
        with urllib.request.urlopen(f"http://{port}/metrics", timeout=5) as page:
            text = page.read().decode()
        for family in text_string_to_metric_families(text):
            for suffix in SUFFIXES.get(family.type, ()):
                found[family.name + suffix] |= set()
            for sample in family.samples:
                found[sample.name] |= set(sample.labels)
    return found


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_asks_for_series_that_are_exported(exported: Labels, query: str) -> None:
    names = set(re.findall(r"\bsits_\w+", query))
    assert names <= set(exported), "as a series is named, _total and _bucket included"
    labels = {
        label for names in re.findall(r"\bby \(([^)]*)\)", query) for label in names.split(", ")
    } | set(re.findall(r"[{,]\s*(\w+)\s*=", query))
    known = set().union(PROMETHEUS_OWN, *(exported[name] for name in names))
    without_samples = not any(exported[name] for name in names)
    assert labels <= known or without_samples
