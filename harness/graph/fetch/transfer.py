"""One attempt to download a file over HTTP, which appends to the bytes of earlier attempts.

FILE.part holds the bytes so far. FILE.part.json holds the version of the file and its length; both exist until the file
is complete. Bytes of different versions are never mixed: a partial response must have the same ETag or date and the
same total length, and start at the end of the partial file, however the server handles If-Range.
"""

import json
import re
import ssl
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, getproxies, proxy_bypass

from harness.base.errors import UserError
from harness.base.files import DATASETS, check_free_space, explain_os_errors, write_text
from harness.base.progress import Log
from harness.base.untrusted import redact_secrets
from harness.graph.sources.archive import is_archive
from harness.graph.sources.remote import MIRROR, RemoteFile

BLOCK = 1 << 20
OK, PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 200, 206, 416
RETRIED = {408, 421, 425, 429}
"""Statuses above 400 that may go away with another attempt."""
REJECTED = range(300, 500)
HARMLESS_ENCODINGS = {".gz": {"gzip", "x-gzip"}}
"""Encodings that some servers declare for compressed files although they send the bytes unchanged."""
PAGE_STARTS = (b"<!doctype html", b"<html")


@dataclass(frozen=True)
class RetryPolicy:
    """Time limits of one attempt, between attempts, and of all attempts together."""

    timeout: float = 60.0
    """The longest time without a byte, or without a response, in seconds."""
    window: float = 60.0
    min_bytes: int = 60 << 10
    """A transfer that receives fewer than `min_bytes` in `window` seconds has stalled."""
    max_idle_attempts: int = 6
    """The most attempts in a row without progress. A stalled transfer does not count as progress."""
    max_attempts: int = 100
    max_seconds: float = 48 * 3600.0
    """The most attempts and seconds of one download, with or without progress."""
    pause: float = 1.0
    max_pause: float = 60.0
    """Seconds before the next attempt, doubled each time up to `max_pause`."""
    max_retry_after: float = 600.0
    """The longest Retry-After of a server that is respected; a longer one ends the download."""


class InterruptedTransferError(Exception):
    """A transfer was interrupted; another attempt may finish it."""

    retry_after = 0.0
    """Seconds that the server asks to wait."""


class StalledTransferError(InterruptedTransferError):
    """A transfer is too slow to continue."""


class StalePartError(InterruptedTransferError):
    """The partial file does not belong to the version on the server: the transfer must start over."""


@dataclass(frozen=True)
class FileVersion:
    """The version of a file on the server, as far as headers identify it."""

    etag: str | None = None
    modified: str | None = None
    total: int | None = None

    @property
    def validator(self) -> str | None:
        """The If-Range value: a strong ETag, or the date."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def matches(self, headers: Message) -> bool:
        """Return True if headers identify this version: they contain the validator and do not contradict it."""
        pairs = {self.etag: headers.get("ETag"), self.modified: headers.get("Last-Modified")}
        present = {known: received for known, received in pairs.items() if known and received}
        return self.validator in present and all(known == received for known, received in present.items())


class PartialFile:
    """The bytes of a file so far, and the version that they belong to."""

    def __init__(self, path: Path, *, lasting: bool = True) -> None:
        self.path, self.version_file = path, path.with_name(f"{path.name}.json")
        self.lasting = lasting
        """True if a later download can resume the file by its name."""

    @property
    def size(self) -> int:
        """The number of bytes received so far."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def version(self) -> FileVersion:
        """The saved version; an empty one if it cannot be read."""
        with suppress(OSError, ValueError, TypeError):
            version = FileVersion(**json.loads(self.version_file.read_text(encoding="utf-8")))
            if all(isinstance(each, str | None) for each in (version.etag, version.modified)):
                return version
        return FileVersion()

    @property
    def is_whole(self) -> bool:
        """True if all bytes have been received, so only verification remains."""
        return 0 < self.size == self.version.total

    @property
    def is_resumable(self) -> bool:
        """True if another attempt can append bytes."""
        return self.is_whole or (self.size > 0 and self.version.validator is not None)

    def save_version(self, version: FileVersion) -> None:
        """Save the version atomically."""
        write_text(self.version_file, json.dumps(vars(version)), DATASETS)

    def delete(self) -> None:
        """Delete the bytes first and the version second, so a version never describes other bytes."""
        self.path.unlink(missing_ok=True)
        self.version_file.unlink(missing_ok=True)


class TransferMonitor:
    """Logs the progress of a transfer every two seconds, and raises an error if it is too slow."""

    def __init__(
        self, name: str, resumed_from: int, total: int | None, log: Log, retries: RetryPolicy
    ) -> None:
        self._name, self._total, self._log, self._retries = name, total, log, retries
        self._resumed_from = resumed_from
        self._start = self._last_logged = self._window_start = time.monotonic()
        self._received = self._received_before_window = 0

    def add(self, size: int, deadline: float) -> None:
        """Count received bytes."""
        self._received += size
        now = time.monotonic()
        if now > deadline:
            raise StalledTransferError(
                f"all attempts together took longer than {self._retries.max_seconds:,.0f} s"
            )
        if now - self._window_start >= self._retries.window:
            if (received := self._received - self._received_before_window) < self._retries.min_bytes:
                seconds = now - self._window_start
                raise StalledTransferError(f"only {received:,} bytes were received in {seconds:.0f} s")
            self._window_start, self._received_before_window = now, self._received
        if now - self._last_logged >= 2:
            self._last_logged = now
            self._log_progress(self._received / (now - self._start))

    def _log_progress(self, rate: float) -> None:
        size = self._resumed_from + self._received
        line = f"{self._name}: {size / 1e6:,.0f}"
        if self._total:
            line += f" of {self._total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, {(self._total - size) / rate:.0f} s left"
        else:
            line += f" MB, {rate / 1e6:.1f} MB/s"
        self._log(line)


def transfer_missing(
    remote: RemoteFile,
    path: Path,
    part: PartialFile,
    log: Log,
    retries: RetryPolicy,
    *,
    known: bool,
    deadline: float,
) -> None:
    """Append the missing bytes to the partial file. `known` is True if the checksum of the file is known."""
    if part.is_whole:
        return
    saved = part.version
    resume_from = part.size if part.is_resumable else 0
    if saved.total is not None and resume_from > saved.total:
        raise StalePartError("the partial file is longer than the file")
    headers = {"Range": f"bytes={resume_from}-", "If-Range": str(saved.validator)} if resume_from else {}
    with closing(_request(remote, path, headers, retries)) as response:
        resumed = _is_resumed(response, saved, resume_from)
        version = saved if resumed else _read_version(response)
        _check_headers(response, remote, path, version.total, known=known)
        check_free_space(path, (version.total or 0) - (resume_from if resumed else 0))
        kept = f"The bytes so far are kept in {part.path}; the same command resumes the download."
        with explain_os_errors(path, DATASETS, kept):
            if not resumed:
                part.delete()
                part.save_version(version)
            monitor = TransferMonitor(path.name, resume_from if resumed else 0, version.total, log, retries)
            with part.path.open("ab" if resumed else "wb") as file:
                while block := _read_block(response):
                    file.write(block)
                    monitor.add(len(block), deadline)
    _check_end(part, version)


def suggest_alternatives(path: Path) -> str:
    """Return advice for a file that cannot be fetched."""
    return f"Set a mirror with {MIRROR}, or a proxy with http_proxy and https_proxy, or put the file by hand at {path}"


def make_web_page_error(remote: RemoteFile, path: Path) -> UserError:
    """Return the error for a web page in place of a file."""
    return UserError(
        f"{remote.display_url} responded with a web page instead of the file: it may ask for a login, or its "
        f"quota may be used up. {suggest_alternatives(path)}"
    )


def make_size_error(remote: RemoteFile, path: Path, size: int) -> UserError:
    """Return the error for a file whose size differs from the card."""
    return UserError(
        f"{remote.display_url} has {size:,} bytes, but the card expects {remote.bytes:,}. {suggest_alternatives(path)}"
    )


class _HttpRedirectHandler(HTTPRedirectHandler):
    """Follows redirects only to http and https."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            fp.close()
            raise UserError(
                f"{redact_secrets(req.full_url)} redirects to {redact_secrets(newurl)}: only http and https are "
                "supported."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _request(remote: RemoteFile, path: Path, headers: dict[str, str], retries: RetryPolicy) -> HTTPResponse:
    """Request the file; return the response with unread body. Raise a final error if retrying cannot help."""
    try:
        response = _send_request(Request(remote.request_url, headers=headers), retries)
    except HTTPError as error:
        error.close()
        raise _convert_http_error(error, remote, path, headers) from None
    except ssl.SSLCertVerificationError as error:
        raise _make_certificate_error(error, remote, path) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _make_certificate_error(error.reason, remote, path) from None
        raise InterruptedTransferError(f"{error.reason}{_describe_proxy(remote)}") from None
    except (InvalidURL, UnicodeError) as error:
        raise UserError(
            f"{remote.display_url} cannot be requested: {error}. {suggest_alternatives(path)}"
        ) from None
    except (HTTPException, OSError) as error:
        raise InterruptedTransferError(f"{error or type(error).__name__}{_describe_proxy(remote)}") from None
    if response.status not in (OK, PARTIAL_CONTENT):
        response.close()
        raise InterruptedTransferError(f"the server responded with {response.status} {response.reason}")
    return response


def _send_request(request: Request, retries: RetryPolicy) -> HTTPResponse:
    """Send a request and wait for the response headers within the time limit, however slowly they arrive."""
    responses: SimpleQueue[HTTPResponse | BaseException] = SimpleQueue()
    is_late = Event()

    def send() -> None:
        try:
            response = build_opener(_HttpRedirectHandler).open(request, timeout=retries.timeout)
        except BaseException as error:  # raised again in the waiting thread
            responses.put(error)
        else:
            responses.put(response)
            if is_late.is_set():
                response.close()

    Thread(target=send, daemon=True).start()
    try:
        outcome = responses.get(timeout=retries.timeout)
    except Empty:
        is_late.set()
        raise StalledTransferError(f"no response within {retries.timeout:.0f} s") from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _convert_http_error(
    error: HTTPError, remote: RemoteFile, path: Path, headers: dict[str, str]
) -> Exception:
    """Return the error for a status of 300 or above: final, stale, or worth another attempt."""
    if error.code == RANGE_NOT_SATISFIABLE and headers:
        return StalePartError(
            "the server has no further bytes, and does not confirm that it is the same file"
        )
    if error.code in REJECTED and error.code not in RETRIED | {RANGE_NOT_SATISFIABLE}:
        return UserError(
            f"{remote.display_url} responded with {error.code} {error.reason}. {suggest_alternatives(path)}"
        )
    interrupted = InterruptedTransferError(f"the server responded with {error.code} {error.reason}")
    interrupted.retry_after = _parse_retry_after(error.headers.get("Retry-After", ""))
    return interrupted


def _parse_retry_after(after: str) -> float:
    """Parse a Retry-After header, which holds seconds or a date."""
    if after.strip().isdecimal():
        return float(after)
    with suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(after).timestamp() - time.time(), 0.0)
    return 0.0


def _make_certificate_error(error: ssl.SSLCertVerificationError, remote: RemoteFile, path: Path) -> UserError:
    return UserError(
        f"The certificate of {urlsplit(remote.request_url).hostname} is not trusted: {error.verify_message}. Correct "
        "the clock of this machine, or set SSL_CERT_FILE to the certificates that it trusts. "
        f"{suggest_alternatives(path)}"
    )


def _describe_proxy(remote: RemoteFile) -> str:
    """Return a note on the proxy of a request, without the password that may be in its URL."""
    parts = urlsplit(remote.request_url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return ""
    return f" (through the proxy {proxy.rpartition('@')[2].removeprefix('http://').rstrip('/')})"


def _is_resumed(response: HTTPResponse, saved: FileVersion, resume_from: int) -> bool:
    """Return True if a response is the rest of the saved version, False if it is the whole file. Other parts raise."""
    if response.status == OK:
        return False
    if not resume_from:
        raise InterruptedTransferError("the server sent a part, but the whole file was requested")
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    if span is None or int(span[1]) != resume_from:
        raise StalePartError("the server sent a part that was not requested")
    if span[3] != "*" and saved.total is not None and int(span[3]) != saved.total:
        raise StalePartError(f"the file has {int(span[3]):,} bytes now, but had {saved.total:,}")
    if not saved.matches(response.headers):
        raise StalePartError("the server sent a part of another or unknown version")
    return True


def _read_version(response: HTTPResponse) -> FileVersion:
    """Return the version of a response with the whole file."""
    length = response.headers.get("Content-Length", "").strip()
    has_length = length.isdecimal() and not response.chunked
    return FileVersion(
        response.headers.get("ETag"),
        response.headers.get("Last-Modified"),
        int(length) if has_length else None,
    )


def _check_headers(
    response: HTTPResponse, remote: RemoteFile, path: Path, total: int | None, *, known: bool
) -> None:
    """Raise an error if the headers show that a response is not the file, or that its end could not be verified."""
    if response.headers.get_content_type() == "text/html" and response.headers.get("Content-Type"):
        raise make_web_page_error(remote, path)
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity"} | HARMLESS_ENCODINGS.get(path.suffix, set()):
        raise UserError(
            f"{remote.display_url} was sent with the encoding {encoding!r}, which was not requested: a server or "
            f"a proxy modifies it. {suggest_alternatives(path)}"
        )
    if remote.bytes is not None and total is not None and total != remote.bytes:
        raise make_size_error(remote, path, total)
    is_verifiable = known or remote.bytes is not None or is_archive(path.name)
    if total is None and not response.chunked and not is_verifiable:
        raise UserError(
            f"{remote.display_url} was sent without its length, so an interrupted transfer would go unnoticed. "
            f"Add `sha256` to the card. {suggest_alternatives(path)}"
        )


def _read_block(response: HTTPResponse) -> bytes:
    """Return the next bytes as soon as any are received."""
    try:
        return response.read1(BLOCK)
    except (HTTPException, OSError) as error:
        reason = "the connection ended early" if isinstance(error, HTTPException) else str(error)
        raise InterruptedTransferError(reason or type(error).__name__) from None


def _check_end(part: PartialFile, version: FileVersion) -> None:
    """Compare the size with the Content-Length; without one, the end of the response is the end of the file."""
    size = part.size
    if size == 0:
        raise InterruptedTransferError("nothing was received")
    if version.total is None:
        part.save_version(FileVersion(version.etag, version.modified, size))
    elif size < version.total:
        raise InterruptedTransferError(f"it ended after {size:,} of {version.total:,} bytes")
    elif size > version.total:
        raise StalePartError(f"it went on after its {version.total:,} bytes")
