"""Rules of the chart that need helm itself: what renders, what is refused, what is valid."""

import os

import pytest
import yaml
from kubernetes_validate import validate
from kubernetes_validate.utils import all_versions

from sits_scheduling.tenant_file import parse_tenants
from sits_scheduling.tenants import Tier

OLDEST, NEWEST = "1.20.0", "1.37.0"
VALUES = ["values.yaml", "ci/gpu.yaml", "ci/external-redis.yaml"]
TOKENS = ['auth.meshToken="m"', 'auth.adminToken="a"', 'auth.redisPassword="r"']

everywhere = pytest.mark.parametrize("version", [OLDEST, NEWEST])
each_file = pytest.mark.parametrize("values", VALUES)


@each_file
def test_the_chart_passes_the_strict_lint(chart, values: str) -> None:
    done = chart.helm("lint", "--strict", str(chart.folder), "-f", str(chart.folder / values))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kept_rendering_is_up_to_date(chart) -> None:
    """UPDATE_RENDERED=1 renders it anew."""
    text = chart.render("values.yaml", NEWEST, *TOKENS).text
    if os.environ.get("UPDATE_RENDERED"):
        chart.kept.write_text(text)
    # As data: versions of helm differ in blank lines.
    assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(chart.kept.read_text()))


@everywhere
@each_file
def test_objects_are_valid(chart, values: str, version: str) -> None:
    """KEDA's own kind is not among the schemas. Each release of kubernetes-validate brings those
    of some versions; `make chart-tools` adds the oldest."""
    if version not in all_versions():
        pytest.skip(f"no schemas of Kubernetes {version}: make chart-tools")
    for found in chart.render(values, version, *TOKENS).objects:
        if not found["apiVersion"].startswith("keda.sh/"):
            assert validate(found, version, strict=True) in version


@pytest.mark.parametrize(
    ("version", "autoscaling", "policy"),
    [(OLDEST, "autoscaling/v2beta2", "policy/v1beta1"), (NEWEST, "autoscaling/v2", "policy/v1")],
)
def test_old_clusters_get_old_api_versions(chart, version, autoscaling, policy) -> None:
    found = chart.render("ci/external-redis.yaml", version)
    assert {o["apiVersion"] for o in found.of("HorizontalPodAutoscaler").values()} == {autoscaling}
    assert {o["apiVersion"] for o in found.of("PodDisruptionBudget").values()} == {policy}


def test_the_kubelet_asks_grpc_itself_where_it_can(chart) -> None:
    def probe(values: str, version: str, *sets: str) -> set[str]:
        (container,) = chart.render(values, version, *sets).pod("executor")["containers"]
        return set(container["livenessProbe"]) & {"exec", "grpc"}

    assert probe("values.yaml", NEWEST) == {"grpc"}
    assert probe("values.yaml", OLDEST) == {"exec"}
    assert probe("values.yaml", NEWEST, 'tls.existingSecret="tls"') == {"exec"}


def test_keda_takes_the_place_of_the_autoscaler(chart) -> None:
    found = chart.render("ci/gpu.yaml", NEWEST)
    assert list(found.of("ScaledObject")) == ["mesh-sits-preprocess"]
    assert found.of("HorizontalPodAutoscaler") == {}


def test_a_scaled_workload_starts_with_the_least_number(chart) -> None:
    """In a cluster: with the number that it has; `lookup` finds nothing here."""
    found = chart.render("ci/external-redis.yaml", NEWEST)
    scaled = {
        o["spec"]["scaleTargetRef"]["name"] for o in found.of("HorizontalPodAutoscaler").values()
    }
    assert scaled == {"mesh-sits-preprocess", "mesh-sits-executor-cpu"}
    assert {found.of("Deployment")[name]["spec"]["replicas"] for name in scaled} == {2}


def test_models_lie_on_the_volume_that_is_named(chart) -> None:
    def source(values: str) -> dict[str, object]:
        volumes = chart.render(values, NEWEST).pod("executor")["volumes"]
        (models,) = (volume for volume in volumes if volume.pop("name") == "models")
        return models

    assert source("values.yaml") == {"emptyDir": {}}
    assert source("ci/gpu.yaml") == {
        "persistentVolumeClaim": {"claimName": "models", "readOnly": True}
    }


def test_ports_name_their_protocol(chart) -> None:
    """API servers of 1.20 cannot apply one without."""
    found = chart.render("values.yaml", NEWEST)
    ports = [p for s in found.of("Service").values() for p in s["spec"]["ports"]]
    ports += [p for _, pod in found.pods() for p in pod["containers"][0].get("ports", ())]
    assert {port["protocol"] for port in ports} == {"TCP"}


def test_gpu_executors_go_where_gpus_are(chart) -> None:
    found = chart.render("ci/gpu.yaml", NEWEST).of("DaemonSet")["mesh-sits-executor-gpu"]
    spec = found["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spec["runtimeClassName"] == "nvidia"


def test_a_secret_of_ones_own_replaces_the_charts(chart) -> None:
    found = chart.render("ci/gpu.yaml", NEWEST)
    assert found.of("Secret") == {}
    names = {
        v["secret"]["secretName"]
        for _, pod in found.pods()
        for v in pod.get("volumes", ())
        if "secret" in v
    }
    assert names == {"sits-tokens", "sits-tls", "front-tls"}


def test_tokens_are_made_when_none_are_given(chart) -> None:
    one, two = (chart.render("values.yaml", NEWEST).of("Secret")["mesh-sits"] for _ in range(2))
    assert set(one["stringData"]) == {"mesh-token", "admin-token", "redis-password"}
    assert all(
        len(text) == 40 and text != two["stringData"][name]
        for name, text in one["stringData"].items()
    )


def test_tenants_reach_those_who_read_them_as_a_file_they_understand(chart) -> None:
    found = chart.render("ci/external-redis.yaml", NEWEST)
    text = found.of("ConfigMap")["mesh-sits-tenants"]["data"]["tenants.json"]
    assert parse_tenants(text).of("search").tier is Tier.GOLD
    for service in ("preprocess", "dispatcher", "executor"):
        pod = found.pod(service)
        (container,) = pod["containers"]
        files = [e["value"] for e in container["env"] if e["name"] == "SITS_TENANTS_FILE"]
        mounted = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "tenants"]
        expected = service != "executor"
        assert files == ["/sits/tenants/tenants.json"] * expected
        assert mounted == ["/sits/tenants"] * expected


def test_other_tenants_replace_the_pods_that_read_them(chart) -> None:
    def mark(*sets: str) -> object:
        found = chart.render("ci/external-redis.yaml", NEWEST, *sets)
        template = found.of("Deployment")["mesh-sits-preprocess"]["spec"]["template"]
        return template["metadata"]["annotations"]["sits/tenants"]

    assert mark() != mark('tenants.default.tier="silver"')


def test_clients_and_scrapers_may_be_named(chart) -> None:
    policies = chart.render("ci/external-redis.yaml", NEWEST).of("NetworkPolicy")
    rules = policies["mesh-sits-preprocess"]["spec"]["ingress"]
    front = next(rule for rule in rules if rule["ports"][0]["port"] == 8001)
    assert {"namespaceSelector": {"matchLabels": {"team": "search"}}} in front["from"]
    assert all(
        rule.get("from") for policy in policies.values() for rule in policy["spec"]["ingress"]
    )


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("drain.drainSeconds=3", "longestRequestSeconds"),
        ("redis.bundled=false", "url"),
        ('redis.url="redis://:hunter2@host"', "url"),
        ('settings={"MESH_TOKEN":"x"}', "MESH_TOKEN"),
        ('architectures=["riscv64"]', "architectures"),
        ("preprocess.replicas=-1", "replicas"),
        ("unknown=1", "unknown"),
        ('executor.kind="StatefulSet"', "kind"),
        ('executors={"cpu":null}', "executors"),
    ],
)
def test_wrong_values_are_refused(chart, setting: str, says: str) -> None:
    done = chart.template("values.yaml", NEWEST, setting)
    assert done.returncode != 0
    assert says in done.stderr
