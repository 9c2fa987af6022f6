"""A headless Chromium, driven through chromedriver's WebDriver (https://www.w3.org/TR/webdriver2):
a few HTTP requests, so no package is needed, only the two programs."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from patience import LIMIT_SECONDS, until

PROGRAMS = ("chromium", "chromedriver")
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "PageDown": "\ue00f",
}


def missing() -> list[str]:
    """The programs that are not here."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


class Browser:
    """A browser of its own, until it leaves the ``with``."""

    def __init__(self, profile: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._session = ""
        try:
            until(self._listens)
            options = {
                "binary": shutil.which("chromium"),
                "args": [
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    f"--user-data-dir={profile}",
                ],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            if self._session:
                self._ask("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(LIMIT_SECONDS)

    def _listens(self) -> bool:
        with socket.socket() as door:
            return door.connect_ex(("127.0.0.1", self._port)) == 0

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=LIMIT_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def open(self, page: Path) -> None:
        self._ask("POST", f"{self._session}/url", {"url": page.absolute().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body in JavaScript returns."""
        body = {"script": script, "args": arguments}
        return self._ask("POST", f"{self._session}/execute/sync", body)

    def until(self, script: str) -> None:
        """Wait until the script's result is true."""
        until(lambda: self.run(script))

    def text(self, selector: str) -> str:
        """What is to be read there."""
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def press(self, *keys: str) -> None:
        """Press and release keys, as a person would: what has the focus gets them."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        self._ask("POST", f"{self._session}/actions", body)

    def click(self, selector: str) -> None:
        found = self._ask(
            "POST", f"{self._session}/element", {"using": "css selector", "value": selector}
        )
        (number,) = found.values()
        self._ask("POST", f"{self._session}/element/{number}/click", {})

    def log(self) -> list[str]:
        """What the console says since the last call: errors, and what the policy refused."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """A window of this size, and a user who prefers dark colours or light ones."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def _devtools(self, command: str, parameters: Any) -> Any:
        body = {"cmd": command, "params": parameters}
        return self._ask("POST", f"{self._session}/goog/cdp/execute", body)

    def screenshot(self, path: Path) -> None:
        """The whole page, as PNG."""
        taken = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(taken["data"]))
