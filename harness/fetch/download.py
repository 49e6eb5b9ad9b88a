"""One file over HTTP: resumed where a transfer broke off, retried, checked, and put in its place whole.

What has come so far is FILE.part; beside it stands which version of the file it is a part of. A file is whole when its
length is what the server says and its checksum what the card says, or what it was the first time: FILE.sha256.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from harness.errors import RunError, UserError
from harness.files import DATASETS, check_room, refusals, sha256_of, sibling, write_text
from harness.locks import locked
from harness.sources.remote import MIRROR, Remote
from harness.store.work import Say

BLOCK = 1 << 20
TIMEOUT = 60.0
"""Seconds without a byte."""
TRIES = 6
"""In a row without progress."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before another try; they double."""
GONE = {400, 401, 403, 404, 405, 410}
"""Answers that another try will not change."""
PART, BEYOND = 206, 416
PAGES = (b"<!doctype html", b"<html")


class _BrokeOffError(Exception):
    """A transfer that another try may finish."""


class _StaleError(_BrokeOffError):
    """What is there is no part of what is published now."""

    def __str__(self) -> str:
        return "what had come is no part of the file any more"


def download(remote: Remote, folder: Path, say: Say, *, wait: float = FIRST_WAIT) -> Path:
    """The file, under the data folder; nothing is fetched if it is there and whole.

    Of several that want it one fetches, and the others wait. Where nobody can lock, each fetches a file of its own.
    """
    path = remote.path(folder)
    with ExitStack() as stack:
        if not path.is_file():
            lock = path.with_name(f".{path.name}.lock")
            with refusals(path, DATASETS):
                others = partial(say, f"somebody else is fetching {path.name}: waiting for it")
                held = stack.enter_context(locked(lock, wait=others))
            if not path.is_file():
                so_far = path.with_name(f"{path.name}.part") if held else sibling(path)
                _fetch(remote, path, so_far, say, wait)
                return path
    verify(remote, folder)
    return path


def _fetch(remote: Remote, path: Path, so_far: Path, say: Say, wait: float) -> None:
    """Tries until the file is there, or no more comes of it."""
    tries, had = 0, _size(so_far)
    while True:
        try:
            _transfer(remote, path, so_far, say)
            break
        except _BrokeOffError as reason:
            if isinstance(reason, _StaleError):
                so_far.unlink(missing_ok=True)
            tries = 1 if _size(so_far) > had else tries + 1
            had = _size(so_far)
            if tries >= TRIES:
                kept = f"{had:,} bytes are kept in {so_far}; the same command goes on there. " if had else ""
                raise RunError(
                    f"{remote.asked} could not be fetched: {reason}. {kept}{_way_out(path)}"
                ) from None
            pause = min(wait * 2 ** (tries - 1), LONGEST_WAIT)
            say(f"{path.name}: {reason}; again in {pause:.0f} s")
            time.sleep(pause)
    _accept(remote, path, so_far)


def verify(remote: Remote, folder: Path) -> None:
    """Holds a file against its card, or against what it was when it came."""
    path = remote.path(folder)
    known = remote.sha256 or _trusted(path)
    found = sha256_of(path)
    if known and found != known:
        raise UserError(
            f"{path} was altered: its sha256 is {found}, and it should be {known}. Delete it and fetch it again."
        )
    if known is None:
        _trust(path, found)


def _transfer(remote: Remote, path: Path, so_far: Path, say: Say) -> None:
    """Whatever is lacking, at the end of the so_far file."""
    state = so_far.with_name(f"{so_far.name}.json")
    had, version = _size(so_far), _version(state)
    headers = {"Range": f"bytes={had}-", "If-Range": version} if had and version else {}
    with _answer(remote, path, headers) as answer:
        resumed = answer.status == PART and _first_byte(answer) == had
        if answer.status == PART and not resumed:
            raise _StaleError
        had = had if resumed else 0
        length = answer.headers.get("Content-Length")
        total = had + int(length) if length is not None and length.isdecimal() else None
        if remote.bytes is not None and total is not None and total != remote.bytes:
            raise UserError(
                f"{remote.asked} has {total:,} bytes, and the card expects {remote.bytes:,}. {_way_out(path)}"
            )
        check_room(path, (total or 0) - had)
        with refusals(path, DATASETS):
            write_text(state, json.dumps({"version": _tag(answer)}))
            with so_far.open("ab" if resumed else "wb") as file:
                for block in _blocks(answer, _Progress(path.name, had, total, say)):
                    if file.tell() == 0 and _is_page(block, answer):
                        raise UserError(
                            f"{remote.asked} answered with a web page and not with the file: it may ask for a login, "
                            f"or its quota may be used up. {_way_out(path)}"
                        )
                    file.write(block)
    if total is not None and _size(so_far) != total:
        raise _BrokeOffError(f"it ended after {_size(so_far):,} of {total:,} bytes")
    state.unlink(missing_ok=True)


@contextmanager
def _answer(remote: Remote, path: Path, headers: dict[str, str]) -> Iterator[HTTPResponse]:
    """What the server says; what cannot be helped is refused at once."""
    try:
        with urlopen(Request(remote.asked, headers=headers), timeout=TIMEOUT) as answer:
            yield answer
    except HTTPError as error:
        error.close()
        if error.code in GONE:
            raise UserError(
                f"{remote.asked} answered {error.code} {error.reason}. {_way_out(path)}"
            ) from None
        if error.code == BEYOND:
            raise _StaleError from None
        raise _BrokeOffError(f"the server answered {error.code} {error.reason}") from None
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        raise _BrokeOffError(str(getattr(error, "reason", error)) or type(error).__name__) from None


def _blocks(answer: Any, progress: "_Progress") -> Iterator[bytes]:
    while block := answer.read(BLOCK):
        yield block
        progress.add(len(block))


def _accept(remote: Remote, path: Path, so_far: Path) -> None:
    """Gives the file its name, if it is the right one."""
    size, found = _size(so_far), sha256_of(so_far)
    if remote.bytes is not None and size != remote.bytes:
        so_far.unlink()
        raise UserError(
            f"{remote.asked} has {size:,} bytes, and the card expects {remote.bytes:,}. {_way_out(path)}"
        )
    known = remote.sha256 or _trusted(path)
    if known and found != known:
        so_far.unlink()
        raise UserError(
            f"{remote.asked} is not the file that is expected: its sha256 is {found}, and not {known}. Nothing was "
            f"kept. {_way_out(path)}"
        )
    if remote.sha256 is None:
        _trust(path, found)
    with refusals(path, DATASETS):
        so_far.rename(path)


class _Progress:
    """Tells now and then how far a transfer is, how fast, and how long it will take."""

    def __init__(self, name: str, had: int, total: int | None, say: Say) -> None:
        self._name, self._had, self._total, self._say = name, had, total, say
        self._got, self._begun = 0, time.monotonic()
        self._said = self._begun

    def add(self, size: int) -> None:
        self._got += size
        now = time.monotonic()
        if now - self._said < 2:
            return
        self._said = now
        rate = self._got / (now - self._begun)
        have = self._had + self._got
        told = f"{self._name}: {have / 1e6:,.0f}"
        if self._total:
            told += f" of {self._total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, {(self._total - have) / rate:.0f} s left"
        else:
            told += f" MB, {rate / 1e6:.1f} MB/s"
        self._say(told)


def _first_byte(answer: HTTPResponse) -> int | None:
    """Of the part that came: bytes 100-199/200."""
    told = answer.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    return int(told) if told.isdecimal() else None


def _tag(answer: HTTPResponse) -> str | None:
    """What stands for this version of the file, if the server says."""
    tag = answer.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified")


def _version(state: Path) -> str | None:
    try:
        found = json.loads(state.read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _is_page(block: bytes, answer: HTTPResponse) -> bool:
    kind = answer.headers.get("Content-Type", "")
    return block.lstrip()[:20].lower().startswith(PAGES) or kind.startswith("text/html")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _trust(path: Path, sha256: str) -> None:
    write_text(path.with_name(f"{path.name}.sha256"), f"{sha256}  {path.name}\n")


def _trusted(path: Path) -> str | None:
    beside = path.with_name(f"{path.name}.sha256")
    return beside.read_text().split()[0] if beside.is_file() else None


def _way_out(path: Path) -> str:
    return (
        f"{MIRROR} names a mirror, http_proxy and https_proxy a proxy; or put the file there by hand: {path}"
    )
