"""A headless Chromium for tests of pages, and why there is none."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
PHONE_PX = 500
"""Narrower windows behave as a phone's."""


def why_no_browser() -> str | None:
    """None when there is one."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not missing:
        return None
    return f"no {' and no '.join(missing)}: on Debian, apt-get install chromium chromium-driver"


@contextmanager
def browser(width_px: int = 1440, height_px: int = 900, *, dark: bool = False) -> Iterator[Chrome]:
    """A window with an empty profile; `complaints` tells what its pages complained about."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = Chrome(_options(profile), Service(shutil.which("chromedriver")))
        try:
            resize(driver, width_px, height_px)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield driver
        finally:
            driver.quit()


def _options(profile: str) -> Options:
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return options


def resize(driver: Chrome, width_px: int, height_px: int) -> None:
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width_px, "height": height_px, "deviceScaleFactor": 1,
         "mobile": width_px < PHONE_PX},
    )  # fmt: skip


def complaints(driver: Chrome) -> list[str]:
    """Everything in the console since the last call."""
    return [f"{line['level']} {line['message']}" for line in _log(driver, "browser")]


def asked_for(driver: Chrome) -> list[str]:
    """Every address that was asked for since the last call."""
    events = (json.loads(line["message"])["message"] for line in _log(driver, "performance"))
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def _log(driver: Chrome, kind: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = driver.get_log(kind)  # type: ignore[no-untyped-call]  # theirs
    return found
