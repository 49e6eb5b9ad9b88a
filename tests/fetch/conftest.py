"""A server on this machine that publishes files and misbehaves as it is told."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Site:
    """Files by path, and how the next answers to a path go wrong, one after the other."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """What was asked for: the path, and the range."""
    url: str = ""
    slow: float = 0.0
    """Seconds that an answer takes at most."""


class Handler(BaseHTTPRequestHandler):
    """One answer."""

    site: Site

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        path, wanted = self.path, self.headers.get("Range")
        self.site.asked.append((path, wanted))
        faults = self.site.faults.get(path, [])
        fault = faults.pop(0) if faults else ""
        if fault.isdecimal():
            self.send_error(int(fault))
        elif fault.startswith("to "):
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("to "))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path not in self.site.files:
            self.send_error(404)
        else:
            self._send(self.site.files[path], wanted, fault)

    def _send(self, data: bytes, wanted: str | None, fault: str) -> None:
        tag = f'"{hash(data)}"'
        start = 0
        if wanted and fault != "no ranges" and self.headers.get("If-Range") == tag:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        if fault == "page":
            data = b"<!DOCTYPE html><html>Quota exceeded</html>"
        self.send_header("ETag", tag)
        if fault != "no length":
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have seen enough
            body = body[: len(body) // 2] if fault == "short" else body
            for start in range(0, len(body), step := max(len(body) // 20, 1)):
                self.wfile.write(body[start : start + step])
                time.sleep(self.site.slow / 20)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The server; HARNESS_MIRROR leads every URL to it."""
    site = Site()
    handler = type("OfThisSite", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        site.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HARNESS_MIRROR", site.url)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield site
        server.shutdown()
