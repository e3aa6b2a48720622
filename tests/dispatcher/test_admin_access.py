"""Who may call the admin API: closed by default, and deaf to other websites."""

from collections.abc import Callable, Iterator

import httpx
import pytest

Admin = Callable[..., httpx.Client]

TOKEN = "admin-hunter2"  # noqa: S105 - of these tests alone
EVERYWHERE = "0.0.0.0:8080"
TRACE = "ab" * 16


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def calls(client: httpx.Client) -> Iterator[tuple[str, str]]:
    """Method and path of everything below /v1, as the document lists it."""
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        if path.startswith("/v1/"):
            url = path.replace("{trace_id}", TRACE)
            yield from ((method.upper(), url) for method in operations)


def answers(client: httpx.Client, **more: object) -> dict[str, int]:
    query = {"strategy": "fifo"}
    return {
        f"{method} {url}": client.request(method, url, params=query, **more).status_code
        for method, url in calls(client)
    }


def strategy(client: httpx.Client, **more: object) -> str:
    return str(client.get("/v1/state", **more).json()["strategy"])


@pytest.mark.parametrize(
    "values",
    [
        {"admin_token": TOKEN},
        {"admin_token": TOKEN, "dispatcher_admin_bind": EVERYWHERE},
        {"dispatcher_admin_bind": EVERYWHERE},
    ],
    ids=["token", "token off loopback", "off loopback"],
)
def test_every_call_is_refused_without_the_token(admin: Admin, values: dict[str, str]) -> None:
    client = admin(**values)
    refused = answers(client)
    assert set(refused.values()) == {401}
    assert {"POST /v1/switch", "GET /v1/live", "GET /v1/state"} <= refused.keys()


def test_without_any_token_a_port_that_others_reach_stays_closed(admin: Admin) -> None:
    client = admin(dispatcher_admin_bind=EVERYWHERE)
    for offered in ("None", TOKEN):
        answer = client.get("/v1/state", headers=bearer(offered))
        assert answer.status_code == 401
        assert "SITS_ADMIN_TOKEN" in answer.json()["do"]


def test_holders_of_the_token_may_call_everything(admin: Admin) -> None:
    client = admin(admin_token=TOKEN, dispatcher_admin_bind=EVERYWHERE)
    allowed = answers(client, headers=bearer(TOKEN))
    assert allowed.pop(f"GET /v1/traces/{TRACE}") == 404
    assert set(allowed.values()) == {200}
    assert strategy(client, headers=bearer(TOKEN)) == "fifo"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer admin-hunter",
     f"Bearer  x{TOKEN}", "Bearer žluť"],
)  # fmt: skip
def test_nothing_but_the_very_token_passes(admin: Admin, header: str) -> None:
    client = admin(admin_token=TOKEN)
    answer = client.get("/v1/state", headers={"Authorization": header.encode()})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


def test_on_loopback_without_a_token_this_machine_may_call(admin: Admin) -> None:
    client = admin()
    assert client.post("/v1/switch", params={"strategy": "fifo"}).status_code == 200
    for name in ("localhost:9", "[::1]:8080", "127.0.0.1", "LOCALHOST"):
        assert client.get("/v1/state", headers={"Host": name}).status_code == 200, name


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example:8080", "[::1", "", "@"])
def test_a_name_that_was_pointed_here_by_others_is_refused(admin: Admin, name: str) -> None:
    client = admin()
    for method, url in calls(client):
        answer = client.request(method, url, headers={"Host": name})
        assert answer.status_code in (400, 403), (method, url)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://[::1"},
     {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)  # fmt: skip
def test_another_site_cannot_switch_through_a_browser(
    admin: Admin, headers: dict[str, str]
) -> None:
    client = admin()
    client.post("/v1/switch", params={"strategy": "random"}).raise_for_status()
    answer = client.post("/v1/switch", params={"strategy": "fifo"}, headers=headers)
    assert (answer.status_code, strategy(client)) == (403, "random")


def test_the_page_may_switch(admin: Admin) -> None:
    client = admin()
    own = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    answer = client.post("/v1/switch", params={"strategy": "fifo"}, headers=own)
    assert (answer.status_code, strategy(client)) == (200, "fifo")


def test_what_holds_no_secret_is_open(admin: Admin) -> None:
    client = admin(admin_token=TOKEN, dispatcher_admin_bind=EVERYWHERE)
    for path in ("/", "/static/style.css", "/healthz", "/metrics", "/openapi.json"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert TOKEN not in answer.text
