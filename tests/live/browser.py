"""A real browser for tests of the page: Chromium without a window, driven by Selenium.

`with browser(width, height, dark) as driver:` gives a webdriver. `problems(driver)` are the errors in its
console, and `requests(driver)` the addresses that it asked for.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
MISSING: Final = "needs Debian's chromium and chromium-driver; `make browser` installs them"


def found() -> tuple[str, str] | None:
    """The browser and its driver, if this machine has them."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    return (program, driver) if program and driver else None


@contextmanager
def browser(width: int = 1400, height: int = 2400, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser with a page of this size, light or dark; skips the test where there is none."""
    if (programs := found()) is None:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(prefix="traceml-browser-", ignore_cleanup_errors=True) as folder:
        options = Options()
        options.binary_location = programs[0]
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, Service(programs[1]))
        driver.implicitly_wait(10)  # the page draws a moment after it is loaded
        try:
            driver.get("about:blank")  # away from the browser's own first page, and what that asked for
            for name in ("browser", "performance"):
                driver.get_log(name)
            look(driver, width, height, dark)
            yield driver
        finally:
            driver.quit()


def look(driver: webdriver.Chrome, width: int, height: int, dark: bool = False) -> None:
    """Give the page this size and colour scheme; narrower than a window can be, as on a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def problems(driver: webdriver.Chrome) -> list[str]:
    """What the console shows as an error or a warning since the last call."""
    return [
        entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]


def requests(driver: webdriver.Chrome) -> list[str]:
    """The addresses that pages asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent]
