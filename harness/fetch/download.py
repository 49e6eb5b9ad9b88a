"""One file over HTTP: resumed after a broken transfer, tried again, checked, and put in its place whole.

A file is whole when its length is that of the server, and its checksum that of the card or of the first download:
FILE.sha256. Before a checksum is trusted for the first time, an archive is read to its end and compared with its own
CRCs. That is a second pass over the file, made once; a checksum from the card needs none.
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
    PartialFile,
    RetryPolicy,
    StaleError,
    StalledError,
    page_refused,
    size_refused,
    transfer,
    way_out,
)
from harness.files import (
    DATASETS,
    explain_os_errors,
    hash_file,
    remove_leftovers,
    sync_file,
    sync_folder,
    temporary_path,
    write_text,
)
from harness.locks import acquire_lock
from harness.sources.archive import damage
from harness.sources.remote import RemoteFile
from harness.spec.root import find_data_folder
from harness.store.catalog import load_card
from harness.store.dataset_card import DatasetCard
from harness.store.work import Say


def download(remote: RemoteFile, folder: Path, say: Say, retries: RetryPolicy = RetryPolicy()) -> Path:  # noqa: B008
    """Fetches a file into the data folder, unless the file is whole already; returns its path.

    Of several processes, one fetches and the others wait. Without locks, each fetches a file of its own.
    """
    path = _place(remote, folder)
    _known(remote, path)  # refused before the transfer, not after
    lock, part = path.with_name(f".{path.name}.lock"), PartialFile(path.with_name(f"{path.name}.part"))
    with ExitStack() as stack:
        if not path.is_file() or any(each.exists() for each in (lock, part.path, part.notes)):
            with explain_os_errors(path, DATASETS):
                others = partial(say, f"somebody else is fetching {path.name}: waiting for it")
                held = stack.enter_context(acquire_lock(lock, wait=others))
            remove_leftovers(path.parent)
            if not path.is_file():
                part = part if held else PartialFile(temporary_path(path), lasting=False)
                _fetch(remote, path, part, say, retries)
                return path
            with explain_os_errors(path, DATASETS):
                part.drop()  # left by a process that was killed after the file had its name
    verify(remote, folder)
    return path


def verify(remote: RemoteFile, folder: Path) -> None:
    """Compares a file with the checksum of its card, or with that of its first download."""
    path = remote.path(folder)
    known = _known(remote, path)
    with _readable(path):
        checksum = hash_file(path)
        harm = damage(path) if known is None else None
    if known and checksum != known:
        raise UserError(
            f"{path} was altered: its sha256 is {checksum}, and it should be {known}. Delete it and fetch it again."
        )
    if harm:
        raise UserError(f"{path} is damaged: {harm}. Delete it and fetch it again.")
    if known is None:
        _trust(path, checksum)


def _place(remote: RemoteFile, folder: Path) -> Path:
    """The place of the file under the data folder; an error if another kind of file is in the way."""
    path, asked = remote.path(folder), PurePath(remote.file)
    if asked.is_absolute() or ".." in asked.parts:
        raise UserError(
            f"{remote.file}: files are fetched into {folder}. Name a path in this folder, without '..', in the card."
        )
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is in the way: it is no file. Move it, or {DATASETS}.")
    return path


def _fetch(remote: RemoteFile, path: Path, part: PartialFile, say: Say, retries: RetryPolicy) -> None:
    """Tries until the file is whole, attempts make no progress, or the time for all attempts is over."""
    deadline = time.monotonic() + retries.seconds
    attempts, idle, most = 0, 0, part.size
    known = _known(remote, path) is not None
    while True:
        try:
            transfer(remote, path, part, say, retries, known=known, deadline=deadline)
            break
        except BrokeOffError as reason:
            if isinstance(reason, StaleError):
                part.drop()
            attempts += 1
            idle = 1 if part.size > most and not isinstance(reason, StalledError) else idle + 1
            most = max(most, part.size)
            pause = max(min(retries.pause * 2 ** (idle - 1), retries.longest_pause), reason.after)
            tired = idle >= retries.idle or attempts >= retries.attempts
            if tired or reason.after > retries.longest_asked or time.monotonic() + pause > deadline:
                raise _given_up(remote, path, part, attempts, reason) from None
            say(f"{path.name}: {reason}; again in {pause:.0f} s")
            time.sleep(pause)
    _accept(remote, path, part, say)


def _given_up(
    remote: RemoteFile, path: Path, part: PartialFile, attempts: int, reason: BrokeOffError
) -> RunError:
    """The error after the last attempt. A part that cannot be resumed is not kept."""
    kept, later = "Nothing is kept. ", ""
    if part.resumable and part.lasting:
        kept = f"{part.size:,} bytes are kept in {part.path}; the same command resumes. "
    else:
        part.drop()
    if reason.after:
        later = f" and asks to come again in {reason.after:,.0f} s"
    tried = f"{attempts} attempts" if attempts > 1 else "one attempt"
    return RunError(f"{remote.shown} could not be fetched in {tried}: {reason}{later}. {kept}{way_out(path)}")


def _accept(remote: RemoteFile, path: Path, part: PartialFile, say: Say) -> None:
    """Checks the file and gives it its name. Until then the part and its notes stay, so a kill costs one check."""
    if remote.bytes is not None and part.size != remote.bytes:
        size = part.size
        part.drop()
        raise size_refused(remote, path, size)
    say(f"{path.name}: checking {part.size / 1e6:,.0f} MB")
    known = _known(remote, path)
    with _readable(part.path):
        sync_file(part.path)
        is_page = _is_page(part.path)
        checksum = hash_file(part.path)
        harm = damage(part.path, path.name) if known is None and not is_page else None
    if is_page and checksum != known:
        part.drop()
        raise page_refused(remote, path)
    if known and checksum != known:
        part.drop()
        beside = "" if remote.sha256 else f"If another version is published now, delete {_beside(path)}. "
        raise UserError(
            f"{remote.shown} is not the file that is expected: its sha256 is {checksum}, and not {known}. Nothing was "
            f"kept. {beside}{way_out(path)}"
        )
    if harm:
        part.drop()
        raise RunError(
            f"{remote.shown} came damaged, or was published damaged: {harm}. Nothing was kept. {way_out(path)}"
        )
    if known is None:
        _trust(path, checksum)
    with explain_os_errors(path, DATASETS):
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
    """The checksum of the card, or else that of the first download."""
    beside = _beside(path)
    if remote.sha256 or not beside.is_file():
        return remote.sha256.lower() if remote.sha256 else None
    with _readable(beside):
        text = beside.read_text(errors="replace", encoding="utf-8")
    checksum = re.match(r"[0-9a-fA-F]{64}\b", text)
    if checksum is None:
        raise UserError(
            f"{beside} holds no sha256 but {text[:20]!r}. Write the output of `sha256sum` for the file you trust into "
            "it, or delete it, and the file as it is will be trusted."
        )
    return checksum[0].lower()


# All published files of a dataset's card.


def fetch(root: Path, name: str, say: Say) -> list[Path]:
    """Fetches the missing files of a dataset and checks the others; a graph that is drawn or imported has none."""
    return fetch_card(root, load_card(root, name), say)


def fetch_card(root: Path, card: DatasetCard, say: Say) -> list[Path]:
    """`fetch` for a card that need not be kept yet."""
    return [download(remote, find_data_folder(root), say) for remote in card.source.remotes()]
