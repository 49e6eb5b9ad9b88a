"""One file over HTTP: resumed where a transfer broke off, tried again, checked, and put in its place whole.

A file is whole when its length is what the server says, and its checksum what the card says or what it was the first
time: FILE.sha256. Before a checksum is trusted for the first time, an archive is read to its end and held against its
own CRCs. That is a second pass over the file, made once; a checksum from the card needs none.
"""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePath

from harness.errors import RunError, UserError
from harness.fetch.transfer import (
    PAGES,
    BrokeOffError,
    Part,
    Patience,
    StaleError,
    StalledError,
    page_refused,
    size_refused,
    transfer,
    way_out,
)
from harness.files import DATASETS, refusals, sha256_of, sibling, sweep, sync_file, sync_folder, write_text
from harness.locks import locked
from harness.sources.archive import damage
from harness.sources.remote import RemoteFile
from harness.store.build import data_folder
from harness.store.catalog import load_card
from harness.store.work import Say


def download(remote: RemoteFile, folder: Path, say: Say, patience: Patience = Patience()) -> Path:  # noqa: B008
    """The file, under the data folder; nothing is fetched if it is there and whole.

    Of several that want it one fetches, and the others wait. Where nobody can lock, each fetches a file of its own.
    """
    path = _place(remote, folder)
    _known(remote, path)  # refused before anything comes, not after
    lock, part = path.with_name(f".{path.name}.lock"), Part(path.with_name(f"{path.name}.part"))
    with ExitStack() as stack:
        if not path.is_file() or any(each.exists() for each in (lock, part.path, part.notes)):
            with refusals(path, DATASETS):
                others = partial(say, f"somebody else is fetching {path.name}: waiting for it")
                held = stack.enter_context(locked(lock, wait=others))
            sweep(path.parent)
            if not path.is_file():
                part = part if held else Part(sibling(path), lasting=False)
                _fetch(remote, path, part, say, patience)
                return path
            with refusals(path, DATASETS):
                part.drop()  # left by one that was killed after the file had its name
    verify(remote, folder)
    return path


def verify(remote: RemoteFile, folder: Path) -> None:
    """Holds a file against its card, or against what it was when it came."""
    path = remote.path(folder)
    known = _known(remote, path)
    with _readable(path):
        found = sha256_of(path)
        harm = damage(path) if known is None else None
    if known and found != known:
        raise UserError(
            f"{path} was altered: its sha256 is {found}, and it should be {known}. Delete it and fetch it again."
        )
    if harm:
        raise UserError(f"{path} is damaged: {harm}. Delete it and fetch it again.")
    if known is None:
        _trust(path, found)


def _place(remote: RemoteFile, folder: Path) -> Path:
    """Where the file belongs: under the data folder, and nothing else is there."""
    path, asked = remote.path(folder), PurePath(remote.file)
    if asked.is_absolute() or ".." in asked.parts:
        raise UserError(
            f"{remote.file}: what is fetched goes under {folder}. Name a path in it, without '..', in the card."
        )
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is in the way: it is no file. Move it, or {DATASETS}.")
    return path


def _fetch(remote: RemoteFile, path: Path, part: Part, say: Say, patience: Patience) -> None:
    """Attempts until the file is there, no more comes of it, or the time for all of them is over."""
    deadline = time.monotonic() + patience.seconds
    attempts, idle, most = 0, 0, part.size
    known = _known(remote, path) is not None
    while True:
        try:
            transfer(remote, path, part, say, patience, known=known, deadline=deadline)
            break
        except BrokeOffError as reason:
            if isinstance(reason, StaleError):
                part.drop()
            attempts += 1
            idle = 1 if part.size > most and not isinstance(reason, StalledError) else idle + 1
            most = max(most, part.size)
            pause = max(min(patience.pause * 2 ** (idle - 1), patience.longest_pause), reason.after)
            tired = idle >= patience.idle or attempts >= patience.attempts
            if tired or reason.after > patience.longest_asked or time.monotonic() + pause > deadline:
                raise _given_up(remote, path, part, attempts, reason) from None
            say(f"{path.name}: {reason}; again in {pause:.0f} s")
            time.sleep(pause)
    _accept(remote, path, part, say)


def _given_up(remote: RemoteFile, path: Path, part: Part, attempts: int, reason: BrokeOffError) -> RunError:
    """The error after the last attempt. What nobody can go on with is not kept."""
    kept, later = "Nothing is kept. ", ""
    if part.can_go_on and part.lasting:
        kept = f"{part.size:,} bytes are kept in {part.path}; the same command goes on there. "
    else:
        part.drop()
    if reason.after:
        later = f" and asks to come again in {reason.after:,.0f} s"
    tried = f"{attempts} attempts" if attempts > 1 else "one attempt"
    return RunError(f"{remote.asked} could not be fetched in {tried}: {reason}{later}. {kept}{way_out(path)}")


def _accept(remote: RemoteFile, path: Path, part: Part, say: Say) -> None:
    """Gives the file its name, if it is the right one. Until then the part and its notes stay: a kill costs a check."""
    if remote.bytes is not None and part.size != remote.bytes:
        size = part.size
        part.drop()
        raise size_refused(remote, path, size)
    say(f"{path.name}: checking {part.size / 1e6:,.0f} MB")
    known = _known(remote, path)
    with _readable(part.path):
        sync_file(part.path)
        is_page = _is_page(part.path)
        found = sha256_of(part.path)
        harm = damage(part.path, path.name) if known is None and not is_page else None
    if is_page and found != known:
        part.drop()
        raise page_refused(remote, path)
    if known and found != known:
        part.drop()
        beside = "" if remote.sha256 else f"If another version is published now, delete {_beside(path)}. "
        raise UserError(
            f"{remote.asked} is not the file that is expected: its sha256 is {found}, and not {known}. Nothing was "
            f"kept. {beside}{way_out(path)}"
        )
    if harm:
        part.drop()
        raise RunError(
            f"{remote.asked} came damaged, or is so where it is published: {harm}. Nothing was kept. {way_out(path)}"
        )
    if known is None:
        _trust(path, found)
    with refusals(path, DATASETS):
        part.path.rename(path)
        sync_folder(path.parent)
        part.notes.unlink(missing_ok=True)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}. It was left as it is.") from error


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1024).lstrip()[:20].lower().startswith(PAGES)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _trust(path: Path, sha256: str) -> None:
    write_text(_beside(path), f"{sha256}  {path.name}\n", DATASETS)


def _known(remote: RemoteFile, path: Path) -> str | None:
    """The checksum of the card, or that of the first time."""
    beside = _beside(path)
    if remote.sha256 or not beside.is_file():
        return remote.sha256.lower() if remote.sha256 else None
    with _readable(beside):
        told = beside.read_text(errors="replace")
    found = re.match(r"[0-9a-fA-F]{64}\b", told)
    if found is None:
        raise UserError(
            f"{beside} holds no sha256 but {told[:20]!r}. Put there what `sha256sum` says of the file you trust, "
            "or delete it and the file as it is will be trusted."
        )
    return found[0].lower()


# All files that a dataset's card says are published.


def fetch(root: Path, name: str, say: Say) -> list[Path]:
    """Fetches what is lacking and checks what is there; nothing, for a graph that is drawn or brought."""
    remotes = load_card(root, name).source.remotes()
    return [download(remote, data_folder(root), say) for remote in remotes]
