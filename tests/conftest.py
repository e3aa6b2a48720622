"""What tests of several folders need: a Redis that can be started here, certificates, and workers
whose crash ends in a failure."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import trustme
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from sits_cli.private_redis import PrivateRedis
from sits_core.settings import SettingsError

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


class EveryFile(LoadFileScheduling):
    """Files to workers, also after one crashed.

    A worker runs a test when it knows what comes next. xdist gives a file of one test to the
    worker that replaces a crashed one, and both wait for ever.
    """

    def _reschedule(self, node: WorkerController) -> None:
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> EveryFile:
    return EveryFile(config, log)


@cache
def _why_no_redis() -> str | None:
    try:
        with PrivateRedis():
            return None
    except SettingsError as error:
        return str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("redis") and (reason := _why_no_redis()):
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


class Authority:
    """A private CA and the files of certificates that it signed, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._ca, self._folder = trustme.CA(), folder
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str = "own", *hosts: str, **options: object) -> tuple[str, str]:
        """Paths of certificate and key. The same `name` again replaces what is there."""
        made = self._ca.issue_cert(*(hosts or ("sits-mesh",)), **options)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for path, blobs in ((cert, made.cert_chain_pems), (key, [made.private_key_pem])):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(b"".join(blob.bytes() for blob in blobs))
            fresh.replace(path)
        return str(cert), str(key)

    def settings(self, name: str = "own", *hosts: str, **options: object) -> dict[str, str]:
        """Fields of `Settings` for a service with a certificate of this CA."""
        cert, key = self.issue(name, *hosts, **options)
        return {
            "tls_cert_file": cert,
            "tls_key_file": key,
            "tls_ca_file": str(self.file),
            "tls_server_name": "sits-mesh",
        }


@pytest.fixture(scope="session")
def make_authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Authority]:
    return lambda: Authority(tmp_path_factory.mktemp("ca") / "files")
