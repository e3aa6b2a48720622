"""Settings come from SITS_ variables; a wrong one is named."""

from pathlib import Path

import pytest
from pydantic import Field

from sits_core.settings import (
    Address,
    Addresses,
    Settings,
    SettingsError,
    is_loopback,
    load,
    parsed_file,
)


class Own(Settings):
    executor_bind: Address = Field(default="127.0.0.1:8020", description="where")
    executor_threads: int = Field(default=1, ge=1, description="how many")
    executor_peers: Addresses = Field(default="", description="with whom")


def test_a_field_is_its_variable() -> None:
    own = load(Own, "executor", {"SITS_EXECUTOR_THREADS": "4", "SITS_TRACE_RATIO": "0.5"})
    assert (own.executor_threads, own.trace_ratio) == (4, 0.5)


def test_only_the_environment_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITS_EXECUTOR_THREADS", "4")
    assert load(Own, "executor", {}).executor_threads == 1
    assert load(Own, "executor").executor_threads == 4


@pytest.mark.parametrize(
    "bind", ["127.0.0.1:0", ":8020", "[::1]:8020", "host.name:65535", "unix:/run/x.sock"]
)
def test_what_can_be_listened_on_is_taken(bind: str) -> None:
    assert load(Own, "executor", {"SITS_EXECUTOR_BIND": bind}).executor_bind == bind


def test_a_list_of_addresses_is_taken() -> None:
    peers = "one:1, [::1]:2,"
    assert load(Own, "executor", {"SITS_EXECUTOR_PEERS": peers}).executor_peers == peers


def test_values_win_over_the_environment() -> None:
    assert load(Own, "executor", {"SITS_EXECUTOR_THREADS": "4"}, executor_threads=2) == Own(
        executor_threads=2
    )


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting SITS_FOO; executor knows: .*SITS_"):
        load(Own, "executor", {"SITS_FOO": "1"})


def test_a_misspelt_variable_of_its_own_is_named() -> None:
    match = r"SITS_EXECUTOR_THREAD; did you mean SITS_EXECUTOR_THREADS\?$"
    with pytest.raises(SettingsError, match=match):
        load(Own, "executor", {"SITS_EXECUTOR_THREAD": "1"})


def test_variables_of_other_services_are_left_to_them() -> None:
    assert load(Own, "executor", {"SITS_DISPATCHER_BIND": "x", "PATH": "/bin"}) == Own()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SITS_EXECUTOR_THREADS", "0"),
        ("SITS_EXECUTOR_THREADS", "many"),
        ("SITS_TRACE_RATIO", "2"),
        ("SITS_TRACE_RATIO", "nan"),
        ("SITS_LOG_LEVEL", "loud"),
        ("SITS_REDIS_PREFIX", "a b"),
        ("SITS_MAX_MESSAGE_BYTES", "1"),
        ("SITS_REFLECTION", "perhaps"),
        ("SITS_EXECUTOR_BIND", "8020"),
        ("SITS_EXECUTOR_BIND", "localhost"),
        ("SITS_EXECUTOR_BIND", "localhost:http"),
        ("SITS_EXECUTOR_BIND", "127.0.0.1:65536"),
        ("SITS_EXECUTOR_PEERS", "dispatcher"),
        ("SITS_EXECUTOR_PEERS", "a:1,b"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        load(Own, "executor", {name: value})


def test_it_says_what_came_where_that_is_a_number_or_a_choice() -> None:
    for name, value in {"SITS_EXECUTOR_THREADS": "many", "SITS_LOG_LEVEL": "loud"}.items():
        with pytest.raises(SettingsError, match=f"^{name}: .*, got '{value}'$"):
            load(Own, "executor", {name: value})


def test_a_text_with_a_form_is_shown_with_what_it_means() -> None:
    with pytest.raises(
        SettingsError, match=r"SITS_REDIS_PREFIX: got 'A', expected .*every Redis key"
    ):
        load(Settings, "preprocess", {"SITS_REDIS_PREFIX": "A"})
    with pytest.raises(SettingsError, match="got what is not shown, expected") as refused:
        load(Settings, "preprocess", {"SITS_REDIS_PREFIX": "user:hunter2@there"})
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_not_there_is_told_in_words() -> None:
    own = load(Own, "executor", {"SITS_TENANTS_FILE": "/nowhere"})
    with pytest.raises(SettingsError, match=r"^SITS_TENANTS_FILE=/nowhere: No such file"):
        parsed_file(own, "tenants_file", str)


def test_a_wrong_secret_is_named_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="SITS_MESH_TOKEN") as caught:
        load(Own, "executor", {}, mesh_token=["hunter2"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["SITS_MESH_TOKEN", "SITS_ADMIN_TOKEN", "SITS_REDIS_URL"])
def test_a_blank_variable_is_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")
    field = name.removeprefix("SITS_").lower()
    assert load(Own, "executor").secret(field) is None
    assert Own().secret(field) is None


def test_secrets_do_not_show_in_their_repr() -> None:
    own = load(Own, "executor", {"SITS_MESH_TOKEN": "hunter2"})
    assert "hunter2" not in repr(own)
    assert own.secret("mesh_token") == "hunter2"


@pytest.mark.parametrize("bind", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/x.sock"])
def test_only_this_machine_reaches_a_loopback_address(bind: str) -> None:
    assert is_loopback(bind)


@pytest.mark.parametrize("bind", ["0.0.0.0:1", "[::]:1", ":1", "10.0.0.1:1", "localhost.evil:1"])
def test_other_machines_reach_the_rest(bind: str) -> None:
    assert not is_loopback(bind)


@pytest.mark.parametrize("name", ["mesh_token", "admin_token"])
class TestTokenFiles:
    def read(self, name: str, content: bytes | None, folder: Path, **more: str) -> Own:
        path = folder / "token"
        if content is not None:
            path.write_bytes(content)
        return load(Own, "executor", {f"SITS_{name.upper()}_FILE": str(path), **more})

    def test_a_token_may_lie_in_a_file(self, name: str, tmp_path: Path) -> None:
        own = self.read(name, b"hunter2\n", tmp_path)
        assert own.secret(name) == "hunter2"
        assert "hunter2" not in repr(own)

    def test_a_file_and_a_token_are_refused(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=f"SITS_{name.upper()}: .*not both") as caught:
            self.read(name, b"hunter2", tmp_path, **{f"SITS_{name.upper()}": "hunter3"})
        assert "hunter" not in str(caught.value)

    @pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
    def test_a_file_without_a_token_is_refused(
        self, name: str, content: bytes | None, tmp_path: Path
    ) -> None:
        with pytest.raises(SettingsError, match=f"SITS_{name.upper()}: .*token"):
            self.read(name, content, tmp_path)


class TestParsedFiles:
    def read(self, path: Path | None) -> int | None:
        own = load(Own, "executor", {"SITS_TENANTS_FILE": str(path)} if path else {})
        return parsed_file(own, "tenants_file", int)

    def test_what_the_parser_makes_of_the_file_is_given_back(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("7")
        assert self.read(path) == 7
        assert self.read(None) is None

    @pytest.mark.parametrize("content", [None, b"seven", b"\xff\xfe"])
    def test_a_wrong_file_is_named_with_its_setting(
        self, content: bytes | None, tmp_path: Path
    ) -> None:
        path = tmp_path / "file"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SettingsError, match=f"SITS_TENANTS_FILE={path}: .+"):
            self.read(path)
