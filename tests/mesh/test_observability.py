"""Alerts and the dashboard ask for what a running mesh exports: names, labels and all.
The tables of metrics in the READMEs list it, and nothing else."""

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

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
PROMETHEUS_OWN = {"job", "instance"}
"""Labels that the scrape adds."""

NOT_HERE = {
    "sits_executor_gpu_memory_bytes",  # with a model on a GPU
    "sits_topology_measured_age_seconds",  # with the file of a probe
    "sits_response_cache_lookups_total",  # with a response cache, as the next ones
    "sits_response_cache_unkept_total",
    "sits_response_cache_bytes",
    "sits_response_cache_answers",
}
"""Documented, and exported only by a mesh that has more than this one."""

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


def documented() -> set[str]:
    """Names in the first column of the tables of metrics, a histogram's without a suffix."""
    names = set[str]()
    for readme in [*ROOT.glob("services/*/README.md"), *ROOT.glob("libs/*/README.md")]:
        for table in readme.read_text().split("| metric | labels |")[1:]:
            rows = table.partition("\n\n")[0]
            first_cells = re.findall(r"^\| (`[^|]*) \|", rows, re.MULTILINE)
            names |= set(re.findall(r"`(sits_\w+)`", " ".join(first_cells)))
    return names


def test_the_tables_of_metrics_list_what_is_exported_and_nothing_else(exported: Labels) -> None:
    ours = {name for name in exported if name.startswith("sits_")}
    exported_names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in ours}
    assert sorted(exported_names - documented()) == []
    assert documented() - exported_names == NOT_HERE
