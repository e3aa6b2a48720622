"""What the subcommands print, and how they fail."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from sits_cli.client import Place, did_you_mean, failed
from sits_cli.commands import infer
from sits_cli.testing import FakeControl, FakeFront, FakeTopology, peer
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1 import topology_pb2 as tp
from sits_protos.v1.link_pb2 import Hello, Role
from sits_sim.scenarios import NAMES

NOBODY = "127.0.0.1:1"
TRACE = bytes(range(16))


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


Sits = Callable[..., Outcome]
Serve = Callable[..., str]


def dispatcher(*peers: pb.PeerState) -> FakeControl:
    return FakeControl(
        pb.GetStateResponse(
            self=Hello(role=Role.ROLE_DISPATCHER, software_version="0.1.0"),
            ready=True,
            started_unix_ns=time.time_ns() - 75_000_000_000,
            strategy="least_loaded",
            strategies=["least_loaded", "round_robin", "topo_aware"],
            model_strategies={"mlp": "round_robin"},
            peers=peers,
            topology_age_s=1.25,
            redis_configured=True,
            redis_connected=True,
        )
    )


def snapshot() -> tp.TopologySnapshot:
    link = tp.DeviceLink(
        to="cpu:1", kind=tp.LINK_KIND_SYS, knowledge=tp.LINK_KNOWLEDGE_KNOWN, bandwidth_gbps=20.5
    )
    weight = tp.AffinityWeight(to="cpu:1", weight=0.25, cost_s_per_mb=5e-5)
    for message in (link, weight):
        setattr(message, "from", "cpu:0")
    cpu = tp.Device(id="cpu:0", kind=tp.DEVICE_KIND_CPU, name="[Xeon]", numa_node=0,
                    memory_total_bytes=3 << 30, health=tp.DEVICE_HEALTH_GOOD)  # fmt: skip
    return tp.TopologySnapshot(
        host="h", node_name="node-1", version=7, published_unix_ns=time.time_ns() - 2_000_000_000,
        devices=[cpu], links=[link], weights=[weight], sources=["sysfs"],
    )  # fmt: skip


def span(name: str, start: int, end: int, **more: bytes) -> pb.Span:
    fields = {"trace_id": TRACE, "span_id": name.encode()[-8:], "parent_id": b"rootspan"} | more
    return pb.Span(name=name, start_unix_ns=start, end_unix_ns=end, **fields)


def traced_mesh(serve: Serve) -> list[str]:
    """Options that lead to a dispatcher and a front with one traced request."""
    edge = FakeControl(
        service="preprocess",
        spans=[
            span("preprocess.request", 1000, 11_000, span_id=b"rootspan", parent_id=b"client01"),
            span("preprocess.queue", 1000, 3000),
        ],
    )
    middle = dispatcher(peer(Role.ROLE_PREPROCESS, serve(edge)))
    middle.spans = [span("dispatcher.place", 3000, 10_500)]
    middle.spans[0].links.add(trace_id=b"o" * 16, span_id=b"publish1")
    node = FakeControl(
        service="topology",
        spans=[span("topology.publish", 100, 500, trace_id=b"o" * 16, span_id=b"publish1")],
    )
    return ["--dispatcher", serve(middle), "--topology", serve(node)]


# models


def test_models_shows_states_shapes_and_reasons(sits: Sits, serve: Serve) -> None:
    outcome = sits("models", "--front", serve(FakeFront()))
    assert outcome.status == 0
    broken, double = (line.split() for line in outcome.out.splitlines()[1:])
    assert broken == ["broken", "1", "unavailable", "no", "such", "file"]
    assert double == ["double", "1", "ready", "x", "FP32[-1,2]", "y", "FP32[-1,2]"]


def test_models_as_json(sits: Sits, serve: Serve) -> None:
    listed = json.loads(sits("models", "--front", serve(FakeFront()), "--json").out)
    assert [(m["name"], m["state"]) for m in listed] == [
        ("broken", "UNAVAILABLE"),
        ("double", "READY"),
    ]


# infer


def test_infer_prints_the_outputs(sits: Sits, serve: Serve) -> None:
    outcome = sits("infer", "double", "--front", serve(FakeFront()), "-i", "x=[1.5, -2]")
    assert outcome.status == 0
    assert outcome.out.splitlines()[-1].split() == ["y", "FP32", "1×2", "3", "-4"]


def test_infer_as_json(sits: Sits, serve: Serve) -> None:
    outcome = sits("infer", "double", "--front", serve(FakeFront()), "-i", "x=[1.5, -2]", "--json")
    assert json.loads(outcome.out) == {
        "model": "double", "version": "1", "outputs": {"y": [[3.0, -4.0]]},
    }  # fmt: skip


def test_infer_as_json_has_the_trace_that_was_asked_for(
    sits: Sits, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infer.secrets, "token_bytes", lambda _count: TRACE)
    outcome = sits("infer", "double", "--front", serve(FakeFront()), "-i", "x=[1, 2]", "--json",
                   "--trace", *traced_mesh(serve))  # fmt: skip
    answer = json.loads(outcome.out)
    assert answer["outputs"] == {"y": [[2.0, 4.0]]}
    assert answer["trace"]["trace_id"] == TRACE.hex()
    assert "dispatcher.place" in [row["name"] for row in answer["trace"]["rows"]]


def test_infer_says_whom_it_is_for(sits: Sits, serve: Serve) -> None:
    front = FakeFront()
    sits("infer", "double", "--front", serve(front), "-i", "x=[1, 2]", "--tenant", "gold")
    assert front.metadata["sits-tenant"] == "gold"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [([], "--input x=… is missing; double takes x FP32[-1,2]"),
     (["-i", "z=[1]"], "no input 'z'; double takes x FP32[-1,2]"),
     (["-i", "x=["], "not JSON"), (["-i", "x"], "expected NAME=JSON or NAME=@FILE")],
)  # fmt: skip
def test_infer_with_wrong_inputs_is_wrong_usage(
    sits: Sits, serve: Serve, inputs: list[str], said: str
) -> None:
    outcome = sits("infer", "double", "--front", serve(FakeFront()), *inputs)
    assert outcome.status == 2
    assert said in " ".join(outcome.err.replace("│", "").split())


def test_infer_fills_in_what_is_missing_when_told_to(sits: Sits, serve: Serve) -> None:
    done = sits("infer", "double", "--random", "--front", serve(FakeFront()), "--json")
    assert done.status == 0
    (values,) = json.loads(done.out)["outputs"]["y"]
    assert len(values) == 2
    assert all(0 <= value <= 2 for value in values)


def test_infer_of_an_unknown_model_gives_the_front_doors_words(sits: Sits, serve: Serve) -> None:
    outcome = sits("infer", "nope", "--front", serve(FakeFront()))
    assert outcome.status == 1
    assert "unknown model: 'nope'" in outcome.err
    assert "`sits models` lists what there is" in outcome.err


def test_infer_of_an_unknown_model_names_those_like_it(sits: Sits, serve: Serve) -> None:
    outcome = sits("infer", "dubble", "--front", serve(FakeFront()))
    assert "did you mean double?" in outcome.err
    assert "did you mean" not in sits("infer", "nope", "--front", serve(FakeFront())).err


def test_for_a_name_that_is_known_no_other_is_meant() -> None:
    assert did_you_mean("mlp", ["mlp", "mlp2"]) == ""
    assert did_you_mean("mpl", ["mlp", "minilm"]) == ": did you mean mlp?"


# topology


def test_topology_shows_devices_links_and_weights(sits: Sits, serve: Serve) -> None:
    outcome = sits("topology", "--topology", serve(FakeTopology(snapshot())))
    assert outcome.status == 0
    assert "node-1  version 7  2.0" in outcome.out
    for words in ("cpu [Xeon] 0 3.00 GiB ? ? good", "sys known 20.5 GB/s ?", "0.250 50.0 µs"):
        assert words in " ".join(outcome.out.split())


def test_topology_as_json_has_its_age(sits: Sits, serve: Serve) -> None:
    outcome = sits("topology", "--topology", serve(FakeTopology(snapshot())), "--json")
    found = json.loads(outcome.out)
    assert found["devices"][0]["id"] == "cpu:0"
    assert found["age_s"] >= 2


# switch


def test_switch_says_what_it_was_and_what_it_is(sits: Sits, serve: Serve) -> None:
    address = serve(dispatcher())
    outcome = sits("switch", "topo_aware", "--dispatcher", address)
    assert (outcome.status, outcome.out.strip()) == (0, "all models: least_loaded → topo_aware")
    again = sits("switch", "topo_aware", "--dispatcher", address, "--json")
    assert json.loads(again.out)["previous"] == "topo_aware"


def test_switch_to_an_unknown_strategy_fails_naming_the_known(sits: Sits, serve: Serve) -> None:
    outcome = sits("switch", "fastest", "--dispatcher", serve(dispatcher()))
    assert outcome.status == 1
    assert "'fastest', expected least_loaded, round_robin, topo_aware" in outcome.err


# explain and shadow


def explained() -> pb.Explanation:
    options = [
        pb.Option(executor="near", scores={"wait_us": -0.0, "service_us": -90.5}, room=True),
        pb.Option(executor="full", scores={"wait_us": -400.0, "service_us": -90.5}),
    ]
    return pb.Explanation(
        request_ids=["r1"], model="m/1", strategy="topo_aware", closed_by=1, considered=2,
        eligible=1, options=options,
    )  # fmt: skip


def test_explain_shows_the_pick_and_why_the_others_were_not(sits: Sits, serve: Serve) -> None:
    middle = dispatcher()
    middle.explanations.append(explained())
    address = serve(middle)
    outcome = sits("explain", "r1", "--dispatcher", address)
    words = " ".join(outcome.out.split())
    assert outcome.status == 0
    assert "strategy topo_aware batch closed by idle 1 of 2 had room" in words
    assert "near -90.5 service_us -90.5 wait_us 0 picked" in words
    assert "full -490.5 service_us -90.5 wait_us -400 no room" in words
    found = json.loads(sits("explain", "--dispatcher", address, "--json").out)
    assert [option["picked"] for option in found[0]["options"]] == [True, False]


def test_explain_of_a_forgotten_request_says_so(sits: Sits, serve: Serve) -> None:
    outcome = sits("explain", "nope", "--dispatcher", serve(dispatcher()))
    assert outcome.status == 1
    assert "nope" in outcome.err


def test_a_shadow_is_started_reported_and_ended(sits: Sits, serve: Serve) -> None:
    middle = dispatcher()
    address = serve(middle)
    assert "No shadow" in sits("shadow", "--dispatcher", address).out
    assert (
        "round_robin decides in the shadow"
        in sits("shadow", "round_robin", "--dispatcher", address).out
    )
    middle.state.shadow.MergeFrom(pb.ShadowReport(decisions=10, agreed=5, gain_us=-7))
    report = sits("shadow", "off", "--dispatcher", address).out
    assert "10 decisions, 50.0% the same; it would have cost 7.0 µs" in " ".join(report.split())


# status


def test_status_lists_services_with_their_links(sits: Sits, serve: Serve) -> None:
    middle = dispatcher(peer(Role.ROLE_EXECUTOR, "127.0.0.1:8020"))
    outcome = sits("status", "--front", serve(FakeFront()), "--dispatcher", serve(middle),
                   "--topology", serve(FakeTopology(snapshot())))  # fmt: skip
    assert outcome.status == 0
    executor = next(line for line in outcome.out.splitlines() if line.startswith("executor"))
    assert executor.split() == ["executor", "127.0.0.1:8020", "ready", "cpu:0", "grpc", "0",
                                "12,345", "0"]  # fmt: skip
    for words in ("strategy least_loaded (others: round_robin, topo_aware)", "1.25 s old",
                  "redis connected", "by model mlp: round_robin"):  # fmt: skip
        assert words in " ".join(outcome.out.split())


def test_status_tells_what_governance_does_and_why(sits: Sits, serve: Serve) -> None:
    middle = dispatcher()
    event = pb.GovernanceEvent(cause="queue_median_ms 812 above 500")
    middle.state.governance.CopyFrom(
        pb.Governance(level="degrade", scale_factor=2.0, shed_tiers=["bronze"], events=[event])
    )
    places = ("--front", serve(FakeFront()), "--dispatcher", serve(middle),
              "--topology", serve(FakeTopology(snapshot())))  # fmt: skip
    words = " ".join(sits("status", *places).out.split())
    assert (
        "governance degrade, refuses bronze, 2.0x the capacity wanted: "
        "queue_median_ms 812 above 500"
    ) in words
    found = json.loads(sits("status", *places, "--json").out)
    assert (found["governance"], found["shed_tiers"]) == ("degrade", ["bronze"])


def test_status_shows_the_one_front_door_once(sits: Sits, serve: Serve) -> None:
    front = serve(FakeFront())
    middle = dispatcher(peer(Role.ROLE_PREPROCESS, "127.0.0.1:8003"))
    outcome = sits("status", "--front", front, "--dispatcher", serve(middle),
                   "--topology", serve(FakeTopology(snapshot())), "--json")  # fmt: skip
    first, *others = json.loads(outcome.out)["services"]
    assert (first["role"], first["address"], first["batches_total"]) == (
        "preprocess", front, 12_345,
    )  # fmt: skip
    assert [line["role"] for line in others] == ["dispatcher", "topology"]


def test_status_fails_when_a_service_is_down_but_shows_the_rest(sits: Sits, serve: Serve) -> None:
    outcome = sits("status", "--front", NOBODY, "--dispatcher", serve(dispatcher()),
                   "--topology", serve(FakeTopology(snapshot())), "--json")  # fmt: skip
    assert outcome.status == 1
    assert "preprocess at 127.0.0.1:1 is not ready" in outcome.err
    services = json.loads(outcome.out)["services"]
    assert [(s["role"], s["ready"]) for s in services] == [
        ("preprocess", False), ("dispatcher", True), ("topology", True),
    ]  # fmt: skip


# trace


def test_trace_draws_the_newest_request_with_all_services(sits: Sits, serve: Serve) -> None:
    outcome = sits("trace", *traced_mesh(serve))
    assert outcome.status == 0
    assert f"trace {TRACE.hex()}\ntotal 10.0 µs  4 spans of 3 services" in outcome.out
    assert "publish (linked)" in outcome.out
    assert "95.0% of the total in stages, 5.0% between services" in outcome.out


def test_trace_takes_an_id(sits: Sits, serve: Serve) -> None:
    outcome = sits("trace", TRACE.hex().upper(), *traced_mesh(serve), "--json")
    found = json.loads(outcome.out)
    assert found["total_ns"] == 10_000
    assert [row["name"] for row in found["rows"] if row["kind"] != "travel"] == [
        "preprocess.request", "preprocess.queue", "dispatcher.place", "topology.publish",
    ]  # fmt: skip


def test_trace_of_a_forgotten_request_says_how_to_make_one(sits: Sits, serve: Serve) -> None:
    outcome = sits("trace", "ab" * 16, *traced_mesh(serve))
    assert outcome.status == 1
    assert "no service remembers trace abab" in outcome.err
    assert "sits infer MODEL --trace" in outcome.err


def test_trace_before_any_request_names_who_did_not_answer(sits: Sits, serve: Serve) -> None:
    outcome = sits("trace", "--dispatcher", serve(dispatcher()), "--topology", NOBODY)
    assert outcome.status == 1
    assert f"no traced request yet (no answer from {NOBODY})" in outcome.err


def test_trace_of_something_that_is_no_id_is_wrong_usage(sits: Sits) -> None:
    assert sits("trace", "yesterday").status == 2


# failures that all share


@pytest.mark.parametrize(
    ("command", "option", "role"),
    [(["models"], "--front", "front door"), (["infer", "m"], "--front", "front door"),
     (["topology"], "--topology", "topology service"),
     (["switch", "x"], "--dispatcher", "dispatcher"),
     (["status"], "--dispatcher", "dispatcher"), (["trace"], "--dispatcher", "dispatcher")],
)  # fmt: skip
def test_when_nobody_is_there_the_error_says_how_to_start(
    sits: Sits, command: list[str], option: str, role: str
) -> None:
    outcome = sits(*command, option, NOBODY)
    assert outcome.status == 1
    assert outcome.out == ""
    assert outcome.err == (
        f"error: no {role} at {NOBODY}: start a mesh with `sits up`, or try again if one is up "
        f"(it starts anew what ended), or name another one with {option}\n"
    )


def test_a_refused_token_names_the_variable(sits: Sits, serve: Serve) -> None:
    outcome = sits("switch", "x", "--dispatcher", serve(dispatcher(), tokens=("secret",)))
    assert outcome.status == 1
    assert "set SITS_ADMIN_TOKEN" in outcome.err


def test_a_refused_api_key_names_the_variable(sits: Sits, serve: Serve) -> None:
    outcome = sits("models", "--front", serve(FakeFront(), tokens=("secret",)))
    assert outcome.status == 1
    assert "set SITS_CLI_API_KEY" in outcome.err


def test_the_api_key_comes_from_the_environment(
    sits: Sits, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITS_CLI_API_KEY", "secret")
    assert sits("models", "--front", serve(FakeFront(), tokens=("secret",))).status == 0


@pytest.mark.parametrize("variable", ["SITS_ADMIN_TOKEN", "SITS_MESH_TOKEN"])
def test_tokens_come_from_the_environment(
    sits: Sits, serve: Serve, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    address = serve(dispatcher(), tokens=("secret",))
    monkeypatch.setenv(variable, "secret")
    assert sits("switch", "topo_aware", "--dispatcher", address).status == 0


def test_addresses_come_from_the_environment(
    sits: Sits, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITS_DISPATCHER_BIND", NOBODY)
    monkeypatch.setenv("SITS_CLI_DISPATCHER", serve(dispatcher()))
    assert sits("switch", "topo_aware").status == 0


@pytest.mark.parametrize(
    "details",
    [
        "errors resolving nowhere:1: [field:hostname lookup error: Domain name not found]",
        "DNS resolution failed for nowhere:1: C-ares status is not ARES_SUCCESS",
    ],
)
def test_a_host_that_nobody_knows_is_named_with_the_option(details: str) -> None:
    error = failed("UNAVAILABLE", details, Place("dispatcher", "nowhere:1", "--dispatcher"))
    assert str(error) == (
        "the host of the dispatcher at nowhere:1 is not known here: "
        "name another one with --dispatcher"
    )


@pytest.mark.parametrize(
    ("command", "option"),
    [(["models"], "--front"), (["status"], "--dispatcher"), (["topology"], "--topology"),
     (["top"], "--admin")],
)  # fmt: skip
@pytest.mark.parametrize(
    "wrong", ["28001", ":28001", "localhost", "host:http", "host:70000", "h:²", "h:9999999"]
)
def test_an_address_without_host_and_port_is_wrong_usage(
    sits: Sits, command: list[str], option: str, wrong: str
) -> None:
    outcome = sits(*command, option, wrong)
    assert outcome.status == 2
    assert f"'{wrong}': expected host:port" in " ".join(outcome.err.replace("│", "").split())


def test_a_front_door_may_listen_on_a_socket_in_the_file_system(sits: Sits) -> None:
    assert "no front door at unix:/nowhere" in sits("models", "--front", "unix:/nowhere").err


def test_an_address_that_a_command_does_not_need_may_be_whatever_the_services_take(
    sits: Sits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITS_DISPATCHER_BIND", ":8010")
    monkeypatch.setenv("SITS_TOPOLOGY_BIND", "127.0.0.1:0")
    outcome = sits("infer", "m", "--front", "127.0.0.1:1")
    assert (outcome.status, outcome.err[:30]) == (1, "error: no front door at 127.0.0.1:1"[:30])
    assert sits("status").status == 2


@pytest.mark.parametrize("host", [".", "a..b", "x" * 70])
def test_a_host_that_cannot_be_is_nobody(sits: Sits, host: str) -> None:
    outcome = sits("top", "--admin", f"{host}:8080")
    assert outcome.status == 1
    assert f"no dispatcher's admin port at {host}:8080" in outcome.err


def test_an_unknown_command_is_wrong_usage(sits: Sits) -> None:
    assert sits("dance").status == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["infer", "--json"], "Missing argument 'model': `sits infer --help` lists what it takes"),
        (["status", "--json", "--forever"], "No such option: --forever"),
        (["models", "--json", "dance"], "No such command 'dance': `sits models --help`"),
        (["--json"], "`sits --help` lists what it takes"),
        (["top", "--admin", "x", "--json"], "'x': expected host:port: `sits top --help`"),
    ],
)
def test_wrong_usage_is_an_object_where_json_is_wanted(
    sits: Sits, arguments: list[str], said: str
) -> None:
    outcome = sits(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert said in json.loads(outcome.err)["error"]


def test_with_json_help_is_still_help(sits: Sits) -> None:
    assert sits("infer", "--help", "--json") == sits("infer", "--help")


def test_the_version_is_told(sits: Sits) -> None:
    assert sits("--version").out.strip() == version("sits-cli")


def test_scenarios_are_listed_with_what_they_are(sits: Sits) -> None:
    outcome = sits("simulate")
    assert outcome.status == 0
    assert [line.split()[0] for line in outcome.out.splitlines()[1 : len(NAMES) + 1]] == [*NAMES]
    assert "1,024 GPUs" in outcome.out


def test_another_service_is_told_from_nobody() -> None:
    error = failed("UNIMPLEMENTED", "Method not found!", Place("front door", "h:1", "--front"))
    assert str(error) == "what answers at h:1 is no front door: name it with --front"


def test_an_unknown_benchmark_is_wrong_usage_and_is_told_those_there_are(sits: Sits) -> None:
    outcome = sits("bench", "dance")
    assert outcome.status == 2
    assert "mesh" in outcome.err


# up


@pytest.mark.parametrize("folder", ["none", "."])
def test_up_without_models_says_where_to_get_some(sits: Sits, tmp_path: Path, folder: str) -> None:
    outcome = sits("up", "--models", str(tmp_path / folder))
    assert outcome.status == 1
    assert "`make models` fetches the demo's" in outcome.err


def test_up_on_a_taken_port_names_it(
    sits: Sits, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(FakeFront())
    monkeypatch.setenv("SITS_PREPROCESS_BIND", address)
    (tmp_path / "model").mkdir()
    outcome = sits("up", "--models", str(tmp_path))
    assert outcome.status == 1
    assert f"{address} (SITS_PREPROCESS_BIND) is in use" in outcome.err
