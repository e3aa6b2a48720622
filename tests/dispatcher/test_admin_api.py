"""The admin API keeps to its document, and answers nonsense with what to do about it."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from structlog.testing import capture_logs

from sits_dispatcher import admin_models as api
from sits_dispatcher.mesh import Mesh

Admin = Callable[..., httpx.Client]

NASTY = (
    "", " ", "0", "-1", "1e9", "nan", "null", "true", "[]", "{}", "a" * 300, "a" * 5000, "%00",
    "../../etc", "\x00", "\r\nX-Evil: 1", "žluť🐎", "';--", "<script>", "topo_aware ", "TOPO_AWARE",
    "fifo+nope", "+", "f" * 32, "F" * 32, "g" * 32,
)  # fmt: skip


@pytest.fixture
def client(admin: Admin) -> httpx.Client:
    """One dispatcher for all, which each test finds with the default strategy."""
    shared = admin()
    shared.post("/v1/switch", params={"strategy": "topo_aware"}).raise_for_status()
    return shared


def document(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return dict(answer.json())


def operations(client: httpx.Client) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document(client)["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def test_the_document_types_every_answer_and_every_failure(client: httpx.Client) -> None:
    schemas = document(client)["components"]["schemas"]
    for path, method, operation in operations(client):
        if not path.startswith("/v1/"):
            continue
        answers = operation["responses"]
        named = answers["200"]["content"]["application/json"]["schema"]["$ref"]
        assert named.rpartition("/")[2] in schemas, (method, path)
        failures = {code: answers[code]["content"] for code in answers if code != "200"}
        assert {"401", "403"} <= failures.keys(), (method, path)
        for code, content in failures.items():
            reference = content["application/json"]["schema"]["$ref"]
            assert reference.endswith("/Problem"), (method, path, code)
        assert operation["security"], (method, path)


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/state", api.State), ("/v1/topology", api.Topology), ("/v1/live", api.Live),
     ("/v1/traces", api.Traces)],
)  # fmt: skip
def test_answers_are_what_the_document_says(
    client: httpx.Client, path: str, model: type[api.Answer]
) -> None:
    answer = client.get(path)
    assert answer.headers["content-type"] == "application/json"
    model.model_validate_json(answer.content, strict=True, extra="forbid")


def test_a_switch_answers_with_both_strategies_and_holds(client: httpx.Client) -> None:
    switched = client.post("/v1/switch", params={"strategy": "least_loaded"}).json()
    assert switched == {"previous": "topo_aware", "current": "least_loaded", "model": ""}
    one = client.post("/v1/switch", params={"strategy": "random", "model": "mlp"}).json()
    assert one == {"previous": "least_loaded", "current": "random", "model": "mlp"}
    state = client.get("/v1/state").json()
    assert (state["strategy"], state["model_strategies"]) == ("least_loaded", {"mlp": "random"})


def test_an_unknown_strategy_is_answered_with_the_known_ones(client: httpx.Client) -> None:
    answer = client.post("/v1/switch", params={"strategy": "best"})
    assert answer.status_code == 404
    for name in client.get("/v1/state").json()["strategies"]:
        assert name in answer.json()["error"]


def problem(answer: httpx.Response) -> api.Problem:
    found = api.Problem.model_validate_json(answer.content, strict=True, extra="forbid")
    assert found.error
    assert found.do
    return found


def values(operation: dict[str, Any], nasty: str) -> Iterator[tuple[dict[str, str], str]]:
    """Query parameters with one of them nasty, and what stands in the path."""
    parameters = operation.get("parameters", ())
    fine = {p["name"]: "fifo" for p in parameters if p["in"] == "query" and p["required"]}
    for parameter in parameters:
        if parameter["in"] == "path":
            yield fine, nasty
        else:
            yield fine | {parameter["name"]: nasty}, "f" * 32


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_nonsense_never_breaks_a_call(client: httpx.Client, nasty: str) -> None:
    for path, method, operation in operations(client):
        for query, inside in values(operation, nasty):
            url = path.replace("{trace_id}", quote(inside, safe="") or "x")
            answer = client.request(method, url, params=query)
            assert answer.status_code < 500, (method, path, nasty)
            if answer.status_code >= 400:
                problem(answer)


def test_the_sweep_reaches_every_parameter(client: httpx.Client) -> None:
    swept = {
        (path, parameter["name"])
        for path, _, operation in operations(client)
        for parameter in operation.get("parameters", ())
    }
    assert swept == {
        ("/v1/switch", "strategy"), ("/v1/switch", "model"), ("/v1/traces", "limit"),
        ("/v1/traces/{trace_id}", "trace_id"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1", 404), ("GET", "/v1/switch", 405),
     ("POST", "/v1/live", 405), ("DELETE", "/v1/state", 405), ("POST", "/v1/switch", 422),
     ("GET", "/static/../admin.py", 404), ("GET", "/static/%2e%2e/admin.py", 404),
     ("GET", "/static/", 404), ("GET", "/v1/traces/xyz", 422), ("GET", "/v1/traces?limit=0", 422)],
)  # fmt: skip
def test_wrong_calls_are_answered_with_a_problem(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    problem(answer)


def test_a_trace_that_nobody_remembers_is_not_found(client: httpx.Client) -> None:
    answer = client.get(f"/v1/traces/{'f' * 32}")
    assert answer.status_code == 404
    assert "--trace" in problem(answer).do


def test_a_fault_of_ours_shows_nothing_of_it(admin: Admin) -> None:
    def break_it(mesh: Mesh) -> None:
        mesh.snapshots = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]

    with capture_logs() as logged:
        answer = admin(break_it).get("/v1/topology")
    assert answer.status_code == 500
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ["admin.failed"]
    assert "division" not in answer.text
    assert "log" in problem(answer).do


def test_every_answer_tells_browsers_to_be_strict(client: httpx.Client) -> None:
    for path in ("/", "/static/style.css", "/v1/state", "/nowhere", "/metrics"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if path in ("/", "/static/style.css")
                                            else "no-store")  # fmt: skip


def test_a_page_that_did_not_change_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/")
    again = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_metrics_are_what_prometheus_reads(client: httpx.Client) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "python_info" in answer.text


def test_the_document_is_json_all_through(client: httpx.Client) -> None:
    assert json.loads(json.dumps(document(client))) == document(client)
