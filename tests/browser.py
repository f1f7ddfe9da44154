"""A headless Chromium, driven over its DevTools protocol: what a page looks like to a reader."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.processes import LIMIT

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """A browser's command, if one is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab; ``with Browser(command, folder) as browser: browser.open(page)``. OSError where it
    does not start.

    ``complaints`` are errors and warnings of the console and of the page, ``requests`` the
    addresses that were asked for. Messages are JSON, ended by a zero byte, on descriptors 3 and 4.
    """

    def __init__(self, command: str, profile: Path, *, seconds: float = LIMIT) -> None:
        self.seconds, self.number, self.buffer = seconds, 0, b""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        to_browser, from_browser = os.pipe(), os.pipe()
        self._write, self._read = to_browser[1], from_browser[0]
        words = [
            *(command, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
        ]
        place = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'  # descriptors where it looks for them
        self.process = subprocess.Popen(
            ["bash", "-c", place, "bash", str(to_browser[0]), str(from_browser[1]), *words],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self.session: str | None = None

    def __enter__(self) -> Browser:
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
            self.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(self.seconds)
        os.close(self._write)
        os.close(self._read)

    def open(self, page: Path, *, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Shows a file in a window of this width, and waits until it is all there."""
        self.complaints.clear()
        self.requests.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900,
                 deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[feature])
        self.ask("Page.navigate", url=page.resolve().as_uri())
        self._read_until(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """A value of the page, as JSON has it."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def ask(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._read_until(lambda message: message.get("id") == self.number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read_until(self, wanted: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        end = time.monotonic() + self.seconds
        while True:
            raw, found, rest = self.buffer.partition(b"\0")
            if found:
                self.buffer = rest
                message = json.loads(raw)
                self._note(message)
                if wanted(message):
                    return message
                continue
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("the browser has ended, or does not answer.")
            self.buffer += piece

    def _note(self, message: Mapping[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
