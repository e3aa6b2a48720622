"""What tests marked `redis` need: a server that can be started here."""

import os
from functools import cache

import pytest

from sits_cli.private_redis import PrivateRedis
from sits_core.settings import SettingsError


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
