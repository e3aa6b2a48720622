"""Chart, compose file, images and observability agree with each service's settings."""

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from sits_core.settings import SERVICES, Settings, load

ROOT = Path(__file__).parents[2]
BINDS = {
    "preprocess": {"grpc": "bind", "metrics": "metrics_bind", "control": "control_bind"},
    "dispatcher": {"grpc": "bind", "admin": "admin_bind"},
    "executor": {"grpc": "bind", "metrics": "metrics_bind"},
    "topology": {"grpc": "bind", "metrics": "metrics_bind"},
}
"""The setting behind each named port."""


def settings_class(service: str) -> type[Settings]:
    classes = vars(import_module(f"sits_{service}.settings")).values()
    (own,) = (
        c for c in classes if isinstance(c, type) and issubclass(c, Settings) and c != Settings
    )
    return own


def checked(service: str, environment: dict[str, str]) -> Settings:
    """Settings as the service would read them. Token files are not there: only their names are
    checked."""
    own = settings_class(service)
    files = [f"SITS_{kind}_TOKEN_FILE" for kind in ("MESH", "ADMIN")]
    assert all(f"{name.removeprefix('SITS_').lower()}" in own.model_fields for name in files)
    return load(own, service, {k: v for k, v in environment.items() if k not in files})


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def default_port(service: str, suffix: str) -> int:
    return port_of(settings_class(service).model_fields[f"{service}_{suffix}"].default)


# The chart


def container(rendered: Any, service: str) -> dict[str, Any]:
    (found,) = rendered.pod(service)["containers"]
    return found


def environment(found: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e["value"] for e in found.get("env", ()) if "value" in e}


@pytest.mark.parametrize("service", SERVICES)
class TestPods:
    def test_their_settings_are_known_and_right(self, rendered: Any, service: str) -> None:
        checked(service, environment(container(rendered, service)))

    def test_their_ports_are_those_of_the_settings(self, rendered: Any, service: str) -> None:
        found = container(rendered, service)
        own = checked(service, environment(found))
        ports = {p["name"]: p["containerPort"] for p in found["ports"]}
        assert ports == {
            name: port_of(getattr(own, f"{service}_{suffix}"))
            for name, suffix in BINDS[service].items()
        }
        assert ports == {
            name: default_port(service, suffix) for name, suffix in BINDS[service].items()
        }

    def test_probes_ask_the_serving_port(self, rendered: Any, service: str) -> None:
        found = container(rendered, service)
        probes = [found[f"{kind}Probe"]["grpc"] for kind in ("startup", "liveness", "readiness")]
        assert {probe["port"] for probe in probes} == {default_port(service, "bind")}
        assert [probe["service"] for probe in probes] == ["alive", "alive", ""]

    def test_probes_survive_a_model_that_loads_for_two_minutes(
        self, rendered: Any, service: str
    ) -> None:
        """Liveness asks whether it answers, which it does while it loads; and it may hang for
        half a minute."""
        probe = container(rendered, service)["livenessProbe"]
        assert probe["grpc"]["service"] == "alive"
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 30
        startup = container(rendered, service)["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 120

    def test_the_kubelet_outlasts_the_drain(self, rendered: Any, service: str) -> None:
        found = container(rendered, service)
        drain_s = checked(service, environment(found)).drain_grace_s
        sleep = re.search(r"sleep\((\d+)\)", str(found["lifecycle"]["preStop"]))
        assert sleep is not None
        assert int(sleep[1]) >= 5
        grace_s = rendered.pod(service)["terminationGracePeriodSeconds"]
        assert grace_s > int(sleep[1]) + drain_s

    def test_scrapers_are_told_the_metrics_port(self, rendered: Any, service: str) -> None:
        kind = "DaemonSet" if service == "topology" else "Deployment"
        (found,) = (o for name, o in rendered.of(kind).items() if f"-{service}" in name)
        annotations = found["spec"]["template"]["metadata"]["annotations"]
        suffix = BINDS[service].get("metrics", "admin_bind")
        assert annotations["prometheus.io/port"] == str(default_port(service, suffix))


def test_every_pod_is_locked_down(rendered: Any) -> None:
    for component, pod in rendered.pods():
        assert pod["automountServiceAccountToken"] is False, component
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
    assert all(
        o["automountServiceAccountToken"] is False for o in rendered.of("ServiceAccount").values()
    )


def test_no_secret_is_in_the_environment_or_a_command(rendered: Any) -> None:
    for _, pod in rendered.pods():
        for each in pod["containers"]:
            names = {e["name"] for e in each.get("env", ())}
            assert names.isdisjoint({"SITS_MESH_TOKEN", "SITS_ADMIN_TOKEN"})
            assert "@" not in environment(each).get("SITS_REDIS_URL", "")


def test_services_lead_to_ports_that_pods_have(rendered: Any) -> None:
    ports = {
        component: {p["name"]: p["containerPort"] for p in pod["containers"][0].get("ports", ())}
        for component, pod in rendered.pods()
    }
    for name, service in rendered.of("Service").items():
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        for port in service["spec"]["ports"]:
            assert ports[component][port["targetPort"]] == port["port"], name


def test_front_doors_find_dispatchers_through_a_headless_service(rendered: Any) -> None:
    own = checked("preprocess", environment(container(rendered, "preprocess")))
    name, _, port = own.preprocess_dispatchers.partition(":")  # type: ignore[attr-defined]
    service = rendered.of("Service")[name]["spec"]
    assert service["clusterIP"] == "None"
    assert [p["port"] for p in service["ports"]] == [int(port)]


def test_services_find_redis(rendered: Any) -> None:
    for service in SERVICES:
        url = environment(container(rendered, service))["SITS_REDIS_URL"]
        host, _, port = url.removeprefix("redis://").removesuffix("/0").partition(":")
        assert rendered.of("Service")[host]["spec"]["ports"][0]["port"] == int(port)


def test_updates_keep_all_replicas(rendered: Any) -> None:
    for name, found in rendered.of("Deployment").items():
        if not name.endswith("-redis"):
            assert found["spec"]["strategy"]["rollingUpdate"] == {
                "maxUnavailable": 0,
                "maxSurge": 1,
            }
            assert found["spec"]["minReadySeconds"] > 0
            assert found["spec"]["replicas"] >= 2
    budgets = rendered.of("PodDisruptionBudget").values()
    assert len(budgets) == 3
    assert {b["spec"]["maxUnavailable"] for b in budgets} == {1}


def test_network_policies_let_in_who_calls_and_nobody_else(rendered: Any) -> None:
    callers: dict[int, set[str]] = {}
    for policy in rendered.of("NetworkPolicy").values():
        for rule in policy["spec"]["ingress"]:
            (port,) = rule["ports"]
            callers[port["port"]] = {
                peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                for peer in rule.get("from", ())
            }
    closed = {port: found for port, found in callers.items() if found}
    assert closed == {
        8003: {"dispatcher", "test"},
        8010: {"preprocess", "executor"},
        8020: {"dispatcher"},
        8030: {"dispatcher"},
        6379: set(SERVICES),
    }
    assert set(callers) - set(closed) == {8001, 8002, 8021, 8031, 8080}


def test_images_run_where_they_are_built_for(rendered: Any) -> None:
    for component, pod in rendered.pods():
        if component != "redis":
            (term,) = pod["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
            values = {e["key"]: e["values"] for e in term["matchExpressions"]}
            assert values["kubernetes.io/arch"] == ["amd64", "arm64"]


# Compose


def parts(compose: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, kind of service and description of what runs one of ours."""
    for name, service in compose["services"].items():
        kind = name.partition("-")[0]
        if kind in SERVICES:
            yield name, kind, service


def plain(value: object) -> str:
    """A value of compose with its variables at their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))


def test_compose_services_have_known_and_right_settings(compose: dict[str, Any]) -> None:
    for _, kind, service in parts(compose):
        given = {k: plain(v) for k, v in service["environment"].items()}
        own = checked(kind, given)
        for suffix in BINDS[kind].values():
            assert port_of(getattr(own, f"{kind}_{suffix}")) == default_port(kind, suffix)


def test_compose_checks_the_health_of_the_serving_port(compose: dict[str, Any]) -> None:
    for name, kind, service in parts(compose):
        command = service["healthcheck"]["test"]
        assert command[:4] == ["CMD", "python", "-m", "sits_core.healthcheck"], name
        assert command[4:] == [f"127.0.0.1:{default_port(kind, 'bind')}"]


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def test_compose_waits_longer_than_a_drain_and_a_model_load(compose: dict[str, Any]) -> None:
    for _, kind, service in parts(compose):
        drain_s = float(service["environment"]["SITS_DRAIN_GRACE_S"])
        assert seconds(service["stop_grace_period"]) > drain_s
        if kind in ("executor", "preprocess"):
            assert seconds(service["healthcheck"]["start_period"]) > 120


def test_compose_locks_containers_down(compose: dict[str, Any]) -> None:
    ours = {name for name, _, _ in parts(compose)} | {"redis", "secrets"}
    for name in ours:
        service = compose["services"][name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"].endswith(":0")


def test_compose_publishes_to_this_machine_only(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", ()):
            assert plain(port).startswith("127.0.0.1:"), name
    assert "ports" not in compose["services"]["redis"]


def test_compose_starts_in_any_order(compose: dict[str, Any]) -> None:
    """Nothing waits for anything but the secrets."""
    for name, _, service in parts(compose):
        assert list(service["depends_on"]) == ["secrets"], name


def test_compose_shares_memory_between_services(compose: dict[str, Any]) -> None:
    for name, _, service in parts(compose):
        assert f"shm:{service['environment']['SITS_SHM_DIR']}" in service["volumes"], name
    assert compose["volumes"]["shm"]["driver_opts"]["type"] == "tmpfs"


def test_compose_and_chart_name_the_same_settings(compose: dict[str, Any], rendered: Any) -> None:
    """What one sets for a service and the other does not is what only that platform has."""
    own = {
        "SITS_ADVERTISE_HOST", "SITS_EXECUTOR_ADVERTISE", "SITS_PREPROCESS_MAX_CONNECTION_AGE_S",
        "SITS_REDIS_PREFIX", "SITS_EXECUTOR_MODEL_REPOSITORY", "SITS_LOG_LEVEL",
        "SITS_TRACE_RATIO", "SITS_DISPATCHER_STRATEGY", "SITS_DISPATCHER_SLO_MS",
        "SITS_PREPROCESS_TRANSPORT",
    }  # fmt: skip
    for service in SERVICES:
        described = compose["services"]["executor-1" if service == "executor" else service]
        ours = {name for name in described["environment"] if name.startswith("SITS_")}
        theirs = {n for n in environment(container(rendered, service)) if n.startswith("SITS_")}
        assert ours ^ theirs <= own


# Images


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "services/Dockerfile").read_text()


def test_one_dockerfile_builds_every_service(compose: dict[str, Any], dockerfile: str) -> None:
    for name, kind, service in parts(compose):
        assert service["build"]["args"]["SERVICE"] == kind, name
    assert "ARG SERVICE" in dockerfile


def test_images_come_for_every_processor(dockerfile: str) -> None:
    """Nothing is fetched by an address, and nothing names a processor."""
    assert not re.search(r"https?://|x86_64|amd64|aarch64|arm64|curl|wget", dockerfile)


def test_images_run_as_a_numbered_user_without_a_shell(dockerfile: str) -> None:
    final = dockerfile.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:0$", final, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["', final, re.MULTILINE)
    assert "\nRUN " not in final


def test_siblings_are_installed_from_the_checkout_in_one_command(dockerfile: str) -> None:
    (command,) = re.findall(r"pip install [^&]*constraints\.txt(.*?)&&", dockerfile, re.DOTALL)
    libraries = {"protos", "core", "channel", "scheduling"}
    assert {Path(p).name for p in re.findall(r"\./libs/(\w+)", command)} == libraries
    assert "./services/${SERVICE" in command


# Observability


def known_metrics() -> set[str]:
    sources = [
        p for folder in ("libs", "services") for p in (ROOT / folder).rglob("sits_*/**/*.py")
    ]
    return {name for p in sources for name in re.findall(r'"(sits_[a-z_]+)"', p.read_text())}


def used_metrics(text: str) -> set[str]:
    return {
        re.sub(r"_(total|bucket|sum|count)$", "", name)
        for name in re.findall(r"\b(sits_[a-z_]+)\b", text)
    }


@pytest.mark.parametrize("file", ["alerts.yaml", "grafana/dashboards/sits.json"])
def test_alerts_and_dashboards_ask_for_metrics_that_exist(file: str) -> None:
    known = {re.sub(r"_(total|count)$", "", name) for name in known_metrics()}
    used = used_metrics((ROOT / "deploy" / file).read_text())
    assert used
    assert used <= known


def test_scaling_asks_for_metrics_that_exist() -> None:
    text = (ROOT / "helm/sits/templates/autoscaling.yaml").read_text()
    metrics = set(re.findall(r'"metric" "(sits_\w+)"', text))
    assert metrics == {"sits_preprocess_queued", "sits_executor_queue_batches"}
    assert metrics <= known_metrics()


def test_prometheus_scrapes_the_metrics_ports() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())["scrape_configs"]
    ports = {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in jobs}
    suffixes = {s: BINDS[s].get("metrics", "admin_bind") for s in SERVICES}
    assert ports == {service: default_port(service, suffix) for service, suffix in suffixes.items()}


def test_every_alert_is_explained() -> None:
    groups = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"]
    names = [rule["alert"] for group in groups for rule in group["rules"]]
    text = (ROOT / "docs/operations.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def test_configuration_files_are_mounted_where_they_are(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = str(volume).partition(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists()
    json.loads((ROOT / "deploy/grafana/dashboards/sits.json").read_text())
    for path in (ROOT / "deploy").rglob("*.yaml"):
        yaml.safe_load(path.read_text())
