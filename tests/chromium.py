"""Chromium without a window, without a network and with a new profile."""

import json
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
KEYS = {"Tab": (9, ""), "Enter": (13, "\r")}
"""The code of a key, and the text that it types."""


def require_chromium() -> None:
    """Skip the tests of a module if Chromium is not installed."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail("CI as root installs Debian's chromium, but it is missing", pytrace=False)
        pytest.skip("Chromium is not installed", allow_module_level=True)


def run_chromium(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium until it has done what its flags say."""
    assert CHROMIUM
    waits = "--virtual-time-budget=30000", "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"
    return subprocess.run(
        [CHROMIUM, *FLAGS, *waits, *flags], capture_output=True, text=True, timeout=180, check=True
    )


class Browser:
    """A page in Chromium, which does what a person at a keyboard does, by the DevTools protocol on pipes."""

    def __init__(self, folder: Path, width: int, height: int = 900) -> None:
        assert CHROMIUM
        self._closes, self._number = ExitStack(), 0
        from_us, to_chromium = os.pipe()
        from_chromium, to_us = os.pipe()
        command = [
            *(CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--window-size={width},{height}"),
            f"--user-data-dir={folder / 'profile'}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "bash", *command],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._out = self._closes.enter_context(os.fdopen(to_chromium, "wb"))
        self._in = self._closes.enter_context(os.fdopen(from_chromium, "rb"))
        self._session: str | None = None
        page = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.send("Page.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._closes.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._out.write(
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        self._out.flush()
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        received = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "Chromium ended"
            received += byte
        message: dict[str, Any] = json.loads(received)
        return message

    def wait_for(self, event: str) -> None:
        while self._receive().get("method") != event:
            pass

    def open(self, page: Path) -> None:
        self.send("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression in the page is true, for at most a minute."""
        for _ in range(600):
            if self.evaluate(f"Boolean({condition})"):
                return
            time.sleep(0.1)
        raise AssertionError(condition)

    def press(self, key: str) -> None:
        code, text = KEYS[key]
        of_key = {"key": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **of_key)
        self.send("Input.dispatchKeyEvent", type="keyUp", **of_key)
