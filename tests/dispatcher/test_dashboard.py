"""The page in a real browser, over a real mesh."""

import json
import urllib.request
from collections.abc import Callable, Iterator

import httpx
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from sits_cli.mesh import Mesh
from sits_cli.testing_browser import asked_for, browser, complaints, resize, why_no_browser
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import plan, running, state_of, write_model
from sits_core.testing import wait_until
from sits_scheduling.signals import RULES

REASON = why_no_browser()
pytestmark = [
    pytest.mark.mesh,
    pytest.mark.redis,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
SOON_S = 30.0
TOKEN = "admin-hunter2"  # noqa: S105 - of these tests alone


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two executors under a little load, every request traced."""
    folder = tmp_path_factory.mktemp("dashboard")
    write_model(folder / "models", "brief", "sleep", sleep_ms=5)
    chosen = plan(folder / "models", folder / "logs", env={"SITS_TRACE_RATIO": "1"})
    with running(chosen, "brief") as mesh, Load(mesh.addresses.front, clients=3):
        yield mesh


@pytest.fixture(scope="module")
def window() -> Iterator[Chrome]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(window: Chrome, mesh: Mesh) -> Chrome:
    """The page of the mesh, as somebody sees it who came a moment ago."""
    resize(window, 1440, 900)
    complaints(window)
    asked_for(window)
    window.get(f"http://{mesh.addresses.admin}/")
    wait_until(lambda: texts(window, "#executors tbody tr"), SOON_S, "the executors on the page")
    return window


def texts(page: Chrome, selector: str) -> list[str]:
    """Of all elements there, in one question, as they may change meanwhile."""
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    return list(page.execute_script(script, selector))


def text(page: Chrome, selector: str) -> str:
    return " ".join(texts(page, selector))


def see(page: Chrome, wanted: str, selector: str) -> None:
    wait_until(lambda: wanted in text(page, selector), SOON_S, f"{wanted!r} in {selector}")


def get(mesh: Mesh, path: str) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{mesh.addresses.admin}{path}", timeout=10) as answer:
        return dict(json.load(answer))


def switch(page: Chrome, strategy: str) -> None:
    Select(page.find_element(By.ID, "strategy")).select_by_value(strategy)
    page.find_element(By.CSS_SELECTOR, "#switch [type=submit]").click()


def test_the_graph_shows_every_device_and_the_executors_on_theirs(page: Chrome, mesh: Mesh) -> None:
    state = state_of(mesh)
    executors = {peer.hello.id for peer in state.peers if peer.hello.id.startswith("executor")}
    drawn = "return [...document.querySelectorAll('.pill')].map((e) => e.dataset.executor)"
    wait_until(
        lambda: set(page.execute_script(drawn)) == executors, SOON_S, "executors on their devices"
    )
    (host,) = get(mesh, "/v1/topology")["hosts"]  # type: ignore[misc]
    assert len(texts(page, "#graph .device")) == len(host["devices"])
    assert len(executors) == 2
    for wanted in (host["node_name"], "CPU 0", "/1"):
        see(page, wanted, "#graph")


def test_load_on_the_page_moves_with_the_mesh(page: Chrome) -> None:
    seen: set[str] = set()

    def moved() -> bool:
        seen.add(text(page, "#graph .pill .count"))
        return len(seen) > 1

    wait_until(moved, SOON_S, "another load")


def test_figures_tenants_and_closing_reasons_come_from_the_front_door(page: Chrome) -> None:
    wait_until(
        lambda: text(page, "#figures div:first-child dd") not in ("", "–", "0"), SOON_S, "a rate"
    )
    see(page, "bronze", "#tenants tbody")
    wait_until(lambda: "%" in text(page, "#tenants tbody"), SOON_S, "a tenant against its SLO")
    see(page, "an instance was free", "#batching .bars")
    see(page, "brief", "#models tbody")
    see(page, "told", "#fronts tbody")


def test_governance_shows_its_level_and_its_signals_against_their_limits(page: Chrome) -> None:
    see(page, "normal", "#governance [aria-current=step]")
    wait_until(lambda: len(texts(page, "#governance .signals li")) == 5, SOON_S, "all signals")
    see(page, "Half wait longer than", "#governance .signals")
    marks = "return document.querySelectorAll('#governance .signals b').length"
    assert page.execute_script(marks) == len(RULES)


def test_what_moves_over_links_is_shown(page: Chrome) -> None:
    column = "#executors tbody td:nth-child(6)"
    wait_until(lambda: "B/s" in text(page, column), SOON_S, "bytes a second of executors")


def test_a_traced_request_is_drawn_over_all_services(page: Chrome) -> None:
    for stage in ("preprocess.request", "dispatcher.place", "executor.infer"):
        see(page, stage, "#stages")
    see(page, "strategy topo_aware", "#attributes")


def test_a_switch_on_the_page_switches_the_mesh(page: Chrome, mesh: Mesh) -> None:
    see(page, "round_robin", "#strategy")
    switch(page, "round_robin")
    see(page, "topo_aware → round_robin", "#notice")
    assert state_of(mesh).strategy == "round_robin"
    see(page, "round_robin", "#models tbody")
    switch(page, "topo_aware")
    wait_until(lambda: state_of(mesh).strategy == "topo_aware", SOON_S, "the switch back")


def test_an_executor_that_dies_leaves_the_page_and_comes_back(page: Chrome, mesh: Mesh) -> None:
    see(page, "2 executors", "#facts")
    mesh.kill("executor-1", restart=False)
    see(page, "1 executor", "#facts li:nth-child(3)")
    wait_until(lambda: len(texts(page, "#graph .pill")) == 1, SOON_S, "one executor drawn")
    mesh.revive("executor-1")
    see(page, "2 executors", "#facts")


def test_affinity_is_shown_as_a_matrix(page: Chrome) -> None:
    see(page, "CPU 0", "#graph")
    page.find_element(By.ID, "tab-matrix").click()
    see(page, "1.00", "#matrix td")
    assert not page.find_element(By.ID, "graph").is_displayed()


def test_nothing_is_complained_about_and_nobody_else_is_asked(page: Chrome, mesh: Mesh) -> None:
    see(page, "executor.infer", "#stages")
    assert complaints(page) == []
    asked = asked_for(page)
    assert any(address.endswith("/v1/live") for address in asked)
    own = f"http://{mesh.addresses.admin}/"
    assert [address for address in asked if not address.startswith(own)] == []


@pytest.mark.parametrize("width_px", [390, 760, 1024, 1440])
def test_the_page_fits_its_window(page: Chrome, width_px: int) -> None:
    see(page, "executor.infer", "#stages")
    resize(page, width_px, 844)
    script = "return document.documentElement.scrollWidth"
    wait_until(lambda: page.execute_script(script) == width_px, SOON_S, "nothing sticks out")


def test_the_page_is_dark_where_people_want_that(page: Chrome) -> None:
    script = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(script)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    assert (light, page.execute_script(script)) == ("rgb(244, 245, 248)", "rgb(14, 17, 23)")


# the token


@pytest.fixture
def locked(admin: Callable[..., httpx.Client], window: Chrome) -> tuple[Chrome, httpx.Client]:
    """The page of a dispatcher with an admin token, before somebody typed it."""
    client = admin(admin_token=TOKEN)
    window.get(str(client.base_url))
    window.execute_script("sessionStorage.clear()")
    window.get(str(client.base_url))
    wait_until(
        lambda: window.find_element(By.ID, "token").is_displayed(), SOON_S, "the question for it"
    )
    return window, client


def type_token(page: Chrome, value: str) -> None:
    page.find_element(By.ID, "token-value").send_keys(value)
    page.find_element(By.CSS_SELECTOR, "#token [type=submit]").click()


def test_with_a_token_the_page_shows_nothing_until_it_is_typed(
    locked: tuple[Chrome, httpx.Client],
) -> None:
    page, _ = locked
    assert texts(page, "#strategy option") == []
    type_token(page, "wrong")
    wait_until(lambda: page.find_element(By.ID, "token").is_displayed(), SOON_S, "asked again")
    assert "admin token" in text(page, "#trouble")


def test_the_typed_token_opens_the_page_and_stays_in_the_tab(
    locked: tuple[Chrome, httpx.Client],
) -> None:
    page, client = locked
    type_token(page, TOKEN)
    see(page, "fifo", "#strategy")
    switch(page, "fifo")
    see(page, "→ fifo", "#notice")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/v1/state", headers=headers).json()["strategy"] == "fifo"
    kept = "return [Object.values(sessionStorage), localStorage.length, document.cookie]"
    assert page.execute_script(kept) == [[TOKEN], 0, ""]
    assert TOKEN not in page.page_source
