"""Secrets of a new deployment."""

import stat
import sys
from pathlib import Path

import pytest

from sits_core.new_secrets import NAMES, create, main
from sits_core.settings import Settings


def test_every_deployment_gets_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        assert create(folder) == [*NAMES, "redis.conf"]
    for name in NAMES:
        assert len((one / name).read_text().strip()) >= 32
        assert (one / name).read_text() != (two / name).read_text()


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "redis_password").write_text("hunter2")
    create(tmp_path)
    assert create(tmp_path) == []
    assert (tmp_path / "redis_password").read_text() == "hunter2"
    assert (tmp_path / "redis.conf").read_text() == "requirepass hunter2\n"


def test_others_than_owner_and_group_read_nothing(tmp_path: Path) -> None:
    create(tmp_path)
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o440}


def test_services_read_them(tmp_path: Path) -> None:
    create(tmp_path)
    settings = Settings(mesh_token_file=str(tmp_path / "mesh_token"))
    assert settings.secret("mesh_token") == (tmp_path / "mesh_token").read_text().strip()


def test_secrets_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["new_secrets", str(tmp_path)])
    assert main() == 0
    said = "".join(capsys.readouterr())
    assert "made mesh_token" in said
    assert not any(p.read_text().split()[-1] in said for p in tmp_path.iterdir())


def test_a_folder_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["new_secrets"])
    assert main() == 2
