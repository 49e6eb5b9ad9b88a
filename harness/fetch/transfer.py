"""One attempt at a file over HTTP: the missing bytes are added to the bytes of earlier attempts.

FILE.part holds the bytes so far. FILE.part.json names the version of the file and its length; both live until the file
has its name. Bytes of different versions are never mixed: a partial answer must bear the same ETag or date and the same
total length, and begin at the end of the part, whatever the server made of If-Range.
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

from harness.errors import UserError
from harness.files import DATASETS, check_free_space, explain_os_errors, write_text
from harness.sources.archive import is_archive
from harness.sources.remote import MIRROR, RemoteFile
from harness.store.work import Say
from harness.untrusted import redact

BLOCK = 1 << 20
WHOLE, PART, BEYOND = 200, 206, 416
PASSING = {408, 421, 425, 429}
"""Statuses of a refused request that another attempt may change."""
REFUSED = range(300, 500)
ENCODED = {".gz": {"gzip", "x-gzip"}}
"""The encodings that some servers name for a compressed file, whose bytes are sent unchanged."""
PAGES = (b"<!doctype html", b"<html")


@dataclass(frozen=True)
class RetryPolicy:
    """The time limits of one attempt, between attempts, and of all attempts together."""

    silence: float = 60.0
    """Seconds without a byte, or without an answer."""
    window: float = 60.0
    least: int = 60 << 10
    """The fewest bytes of every window of so many seconds: fewer are a stall."""
    idle: int = 6
    """The most attempts in a row without progress. A stall is no progress, however many bytes came."""
    attempts: int = 100
    seconds: float = 48 * 3600.0
    """The most attempts and seconds of one call, with or without progress."""
    pause: float = 1.0
    longest_pause: float = 60.0
    """Seconds before the next attempt, doubled each time up to the longest."""
    longest_asked: float = 600.0
    """The longest pause (Retry-After) of a server that is granted."""


class BrokeOffError(Exception):
    """A transfer that another attempt may finish."""

    after = 0.0
    """Seconds that the server asks to wait."""


class StalledError(BrokeOffError):
    """A transfer that is too slow to go on."""


class StaleError(BrokeOffError):
    """A part that belongs to no version of the server: the transfer must begin anew."""


@dataclass(frozen=True)
class Version:
    """The version of a file on the server, as far as its headers tell."""

    etag: str | None = None
    modified: str | None = None
    total: int | None = None

    @property
    def validator(self) -> str | None:
        """The condition of a request for the rest: a strong ETag, or the date."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def is_borne_by(self, headers: Message) -> bool:
        """True if headers name this version: they contain the validator and contradict nothing."""
        pairs = {self.etag: headers.get("ETag"), self.modified: headers.get("Last-Modified")}
        named = {known: received for known, received in pairs.items() if known and received}
        return self.validator in named and all(known == received for known, received in named.items())


class PartialFile:
    """The bytes of a file so far, and their version."""

    def __init__(self, path: Path, *, lasting: bool = True) -> None:
        self.path, self.notes = path, path.with_name(f"{path.name}.json")
        self.lasting = lasting
        """True if a later call can find the file by its name."""

    @property
    def size(self) -> int:
        """The bytes that have come."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def version(self) -> Version:
        """The noted version; an empty one if the notes cannot be read."""
        with suppress(OSError, ValueError, TypeError, RecursionError):
            version = Version(**json.loads(self.notes.read_text(encoding="utf-8")))
            if all(isinstance(each, str | None) for each in (version.etag, version.modified)):
                return version
        return Version()

    @property
    def is_whole(self) -> bool:
        """True if all bytes have come, so that only the checks remain."""
        return 0 < self.size == self.version.total

    @property
    def resumable(self) -> bool:
        """True if another attempt can add bytes."""
        return self.is_whole or (self.size > 0 and self.version.validator is not None)

    def note(self, version: Version) -> None:
        """Notes the version, whole or not at all."""
        write_text(self.notes, json.dumps(vars(version)), DATASETS)

    def drop(self) -> None:
        """Deletes the bytes first and the notes second: notes never stand beside bytes of another version."""
        self.path.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)


class Watch:
    """Reports the progress of a transfer every two seconds, and ends a transfer that is too slow."""

    def __init__(self, name: str, had: int, total: int | None, say: Say, retries: RetryPolicy) -> None:
        self._name, self._had, self._total, self._say, self._retries = name, had, total, say, retries
        self._begun = self._reported = self._window = time.monotonic()
        self._got = self._before = 0

    def add(self, size: int, deadline: float) -> None:
        """Counts bytes that came."""
        self._got += size
        now = time.monotonic()
        if now > deadline:
            raise StalledError(f"all attempts together took longer than {self._retries.seconds:,.0f} s")
        if now - self._window >= self._retries.window:
            if (came := self._got - self._before) < self._retries.least:
                raise StalledError(f"only {came:,} bytes came in {now - self._window:.0f} s")
            self._window, self._before = now, self._got
        if now - self._reported >= 2:
            self._reported = now
            self._report(self._got / (now - self._begun))

    def _report(self, rate: float) -> None:
        have = self._had + self._got
        line = f"{self._name}: {have / 1e6:,.0f}"
        if self._total:
            line += f" of {self._total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, {(self._total - have) / rate:.0f} s left"
        else:
            line += f" MB, {rate / 1e6:.1f} MB/s"
        self._say(line)


def transfer(
    remote: RemoteFile,
    path: Path,
    part: PartialFile,
    say: Say,
    retries: RetryPolicy,
    *,
    known: bool,
    deadline: float,
) -> None:
    """Adds the missing bytes to the part. `known` is true if the checksum of the file is known."""
    if part.is_whole:
        return
    noted = part.version
    had = part.size if part.resumable else 0
    if noted.total is not None and had > noted.total:
        raise StaleError("more had come than the file has")
    headers = {"Range": f"bytes={had}-", "If-Range": str(noted.validator)} if had else {}
    with closing(_answer(remote, path, headers, retries)) as answer:
        resumed = _resumes(answer, noted, had)
        version = noted if resumed else _described(answer)
        _check(answer, remote, path, version.total, known=known)
        check_free_space(path, (version.total or 0) - (had if resumed else 0))
        with explain_os_errors(
            path, DATASETS, f"The bytes so far are kept in {part.path}; the same command resumes."
        ):
            if not resumed:
                part.drop()
                part.note(version)
            watch = Watch(path.name, had if resumed else 0, version.total, say, retries)
            with part.path.open("ab" if resumed else "wb") as file:
                while block := _read(answer):
                    file.write(block)
                    watch.add(len(block), deadline)
    _close(part, version)


def way_out(path: Path) -> str:
    """The ways out for a file that cannot be fetched."""
    return f"Name a mirror by {MIRROR} or a proxy by http_proxy and https_proxy, or put the file here by hand: {path}"


def page_refused(remote: RemoteFile, path: Path) -> UserError:
    """The error for a web page in the place of a file."""
    return UserError(
        f"{remote.shown} answered with a web page and not with the file: it may ask for a login, or its quota may be "
        f"used up. {way_out(path)}"
    )


def size_refused(remote: RemoteFile, path: Path, size: int) -> UserError:
    """The error for a file of another size than the card's."""
    return UserError(
        f"{remote.shown} has {size:,} bytes, and the card expects {remote.bytes:,}. {way_out(path)}"
    )


class _OverHttp(HTTPRedirectHandler):
    """Follows a redirect to http and https alone."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            fp.close()
            raise UserError(
                f"{redact(req.full_url)} leads to {redact(newurl)}: only http and https are fetched."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _answer(remote: RemoteFile, path: Path, headers: dict[str, str], retries: RetryPolicy) -> HTTPResponse:
    """The head of the server's answer. An answer that another attempt cannot change is an error at once."""
    try:
        answer = _asked(Request(remote.asked, headers=headers), retries)
    except HTTPError as error:
        error.close()
        raise _refused(error, remote, path, headers) from None
    except ssl.SSLCertVerificationError as error:
        raise _not_trusted(error, remote, path) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _not_trusted(error.reason, remote, path) from None
        raise BrokeOffError(f"{error.reason}{_by_proxy(remote)}") from None
    except (InvalidURL, UnicodeError) as error:
        raise UserError(f"{remote.shown} cannot be asked for: {error}. {way_out(path)}") from None
    except (HTTPException, OSError) as error:
        raise BrokeOffError(f"{error or type(error).__name__}{_by_proxy(remote)}") from None
    if answer.status not in (WHOLE, PART):
        answer.close()
        raise BrokeOffError(f"the server answered {answer.status} {answer.reason}")
    return answer


def _asked(request: Request, retries: RetryPolicy) -> HTTPResponse:
    """The head of an answer, within the time limit: a head that comes byte by byte counts as silence."""
    answers: SimpleQueue[HTTPResponse | BaseException] = SimpleQueue()
    late = Event()

    def ask() -> None:
        try:
            answer = build_opener(_OverHttp).open(request, timeout=retries.silence)
        except BaseException as error:  # raised again in the thread that waits
            answers.put(error)
        else:
            answers.put(answer)
            if late.is_set():
                answer.close()

    Thread(target=ask, daemon=True).start()
    try:
        outcome = answers.get(timeout=retries.silence)
    except Empty:
        late.set()
        raise StalledError(f"no answer came in {retries.silence:.0f} s") from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _refused(error: HTTPError, remote: RemoteFile, path: Path, headers: dict[str, str]) -> Exception:
    """The error for a status of 300 and above: final, stale, or worth another attempt."""
    if error.code == BEYOND and headers:
        return StaleError(
            "the server has no more than what had come, and does not say that it is the same file"
        )
    if error.code in REFUSED and error.code not in PASSING | {BEYOND}:
        return UserError(f"{remote.shown} answered {error.code} {error.reason}. {way_out(path)}")
    broke_off = BrokeOffError(f"the server answered {error.code} {error.reason}")
    broke_off.after = _seconds(error.headers.get("Retry-After", ""))
    return broke_off


def _seconds(after: str) -> float:
    """The seconds of a Retry-After, which holds seconds or a date."""
    if after.strip().isdecimal():
        return float(after)
    with suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(after).timestamp() - time.time(), 0.0)
    return 0.0


def _not_trusted(error: ssl.SSLCertVerificationError, remote: RemoteFile, path: Path) -> UserError:
    return UserError(
        f"The certificate of {urlsplit(remote.asked).hostname} is not trusted: {error.verify_message}. Correct the "
        f"clock of this machine, or let SSL_CERT_FILE name the certificates that it trusts. {way_out(path)}"
    )


def _by_proxy(remote: RemoteFile) -> str:
    """The proxy of a request, without the password that may be in its URL."""
    parts = urlsplit(remote.asked)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return ""
    return f" (by the proxy {proxy.rpartition('@')[2].removeprefix('http://').rstrip('/')})"


def _resumes(answer: HTTPResponse, noted: Version, had: int) -> bool:
    """True if an answer is the rest of the noted version, False if it is a whole file; an error for any other part."""
    if answer.status == WHOLE:
        return False
    if not had:
        raise BrokeOffError("the server sent a part, and the whole was asked for")
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    if span is None or int(span[1]) != had:
        raise StaleError("the server sent another part than was asked for")
    if span[3] != "*" and noted.total is not None and int(span[3]) != noted.total:
        raise StaleError(f"the file has {int(span[3]):,} bytes now, and had {noted.total:,}")
    if not noted.is_borne_by(answer.headers):
        raise StaleError("the server sent a part of another version, or does not say of which")
    return True


def _described(answer: HTTPResponse) -> Version:
    """The version of a whole answer."""
    length = answer.headers.get("Content-Length", "").strip()
    counts = length.isdecimal() and not answer.chunked
    return Version(
        answer.headers.get("ETag"), answer.headers.get("Last-Modified"), int(length) if counts else None
    )


def _check(answer: HTTPResponse, remote: RemoteFile, path: Path, total: int | None, *, known: bool) -> None:
    """Refuses, by its head, an answer that cannot be the file, or whose end could not be checked."""
    if answer.headers.get_content_type() == "text/html" and answer.headers.get("Content-Type"):
        raise page_refused(remote, path)
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity"} | ENCODED.get(path.suffix, set()):
        raise UserError(
            f"{remote.shown} came with the encoding {encoding!r}, and the file as it is was asked for: a server or a "
            f"proxy in between changes it. {way_out(path)}"
        )
    if remote.bytes is not None and total is not None and total != remote.bytes:
        raise size_refused(remote, path, total)
    proven = known or remote.bytes is not None or is_archive(path.name)
    if total is None and not answer.chunked and not proven:
        raise UserError(
            f"{remote.shown} came without its length, so a broken transfer could not be seen. Put `sha256` into the "
            f"card. {way_out(path)}"
        )


def _read(answer: HTTPResponse) -> bytes:
    """The next bytes, as soon as any have come."""
    try:
        return answer.read1(BLOCK)
    except (HTTPException, OSError) as error:
        reason = "the connection ended early" if isinstance(error, HTTPException) else str(error)
        raise BrokeOffError(reason or type(error).__name__) from None


def _close(part: PartialFile, version: Version) -> None:
    """Compares the size with the length in the head; without a length, the end of the answer is the end."""
    size = part.size
    if size == 0:
        raise BrokeOffError("nothing came")
    if version.total is None:
        part.note(Version(version.etag, version.modified, size))
    elif size < version.total:
        raise BrokeOffError(f"it ended after {size:,} of {version.total:,} bytes")
    elif size > version.total:
        raise StaleError(f"it went on after its {version.total:,} bytes")
