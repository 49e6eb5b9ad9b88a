"""A server on this machine that publishes files and misbehaves as it is told."""

import gzip
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PAGE = b"<!DOCTYPE html><html>Quota exceeded</html>"


@dataclass
class Site:
    """Files by path, and how the next answers to a path go wrong, one after the other."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    always: str = ""
    """How every answer goes wrong that no fault is left for."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """What was asked for: the path, and the range."""
    url: str = ""
    slow: float = 0.0
    """Seconds that an answer takes at most."""
    says: tuple[str, ...] = ("ETag",)
    """The headers by which versions are told apart."""
    sent: int = 0
    """Bytes of files that were sent."""


def versions(data: bytes, says: tuple[str, ...]) -> dict[str, str]:
    """What the server calls this version of a file."""
    number = zlib.crc32(data)
    told = {"ETag": f'"{number}"', "Last-Modified": formatdate(number, usegmt=True)}
    return {name: told[name] for name in says}


class Handler(BaseHTTPRequestHandler):
    """One answer."""

    site: Site

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        path, wanted = self.path, self.headers.get("Range")
        self.site.asked.append((path, wanted))
        faults = self.site.faults.get(path, [])
        fault = faults.pop(0) if faults else self.site.always
        if fault[:3].isdecimal():
            self.send_response(int(fault[:3]))
            if fault[4:]:
                self.send_header("Retry-After", fault[4:])
            self.end_headers()
        elif fault.startswith("to "):
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("to "))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path not in self.site.files:
            self.send_error(404)
        else:
            with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have seen enough
                self._send(self.site.files[path], wanted, fault)

    def _send(self, data: bytes, wanted: str | None, fault: str) -> None:
        head = versions(data, self.site.says)
        if fault == "slow head":
            return self._trickle_head()
        data = gzip.compress(data, 1) if fault == "gzip" else {"page": PAGE, "empty": b""}.get(fault, data)
        total = len(data) + ("other total" in fault)
        conditional = fault != "no ranges" and self.headers.get("If-Range") in head.values()
        partial = bool(wanted) and (conditional or "blind" in fault)  # the blind see no If-Range
        start = (
            int(str(wanted).removeprefix("bytes=").split("-")[0]) if partial and "from 0" not in fault else 0
        )
        self.protocol_version = "HTTP/1.1" if "chunked" in fault else "HTTP/1.0"
        head = {} if "mute" in fault else head
        if partial or fault == "unasked":
            self.send_response(206)
            head["Content-Range"] = f"bytes {start}-{len(data) - 1}/{total}"
        else:
            self.send_response(200)
        if not (chunked := "chunked" in fault) and fault not in ("no length", "cut"):
            head["Content-Length"] = str(len(data) - start)
        head |= {"Transfer-Encoding": "chunked"} if chunked else {}
        head |= {"ETag": '"another"'} if "other tag" in fault else {}
        head |= {"gzip": {"Content-Encoding": "gzip"}, "html": {"Content-Type": "text/html"}}.get(fault, {})
        for name, value in head.items():
            self.send_header(name, value)
        self.end_headers()
        return self._body(data[start:], fault)

    def _trickle_head(self) -> None:
        """A line that never ends, for four seconds."""
        for _ in range(200):
            self.wfile.write(b"H")
            time.sleep(0.02)

    def _body(self, body: bytes, fault: str) -> None:
        half = any(word in fault for word in ("short", "cut", "reset"))
        body = body[: len(body) // 2] if half else body
        chunked = "chunked" in fault
        step = 1 if fault == "trickle" else max(len(body) // 20, 1)
        for start in range(0, len(body), step):
            piece = body[start : start + step]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            self.site.sent += len(piece)
            time.sleep(0.01 if fault == "trickle" else self.site.slow / 20)
        if fault == "chunked":
            self.wfile.write(b"0\r\n\r\n")
        if fault == "reset":  # a linger of no seconds: the kernel says RST, and not FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True


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
