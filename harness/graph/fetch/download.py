"""Downloads a file over HTTP: retries, resumes interrupted transfers, verifies the file, and renames it at the end.

A file is complete if it has the length that the server says, and the checksum of the card or of the first download
(FILE.sha256). Before the checksum of a first download is saved, the CRCs of an archive are checked, in a second pass
over the file. With a checksum in the card, this is unnecessary.
"""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePath

from harness.base.errors import RunError, UserError
from harness.base.files import (
    DATASETS,
    explain_os_errors,
    hash_file,
    remove_leftovers,
    sync_file,
    sync_folder,
    temporary_path,
    write_text,
)
from harness.base.locks import acquire_lock
from harness.base.progress import Log
from harness.graph.cards.catalog import load_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.fetch.transfer import (
    PAGE_STARTS,
    InterruptedTransferError,
    PartialFile,
    RetryPolicy,
    StalePartError,
    StalledTransferError,
    make_size_error,
    make_web_page_error,
    suggest_alternatives,
    transfer_missing,
)
from harness.graph.sources.archive import find_damage
from harness.graph.sources.remote import RemoteFile
from harness.spec.root import find_data_folder


def download_file(
    remote: RemoteFile,
    folder: Path,
    log: Log,
    retries: RetryPolicy = RetryPolicy(),  # noqa: B008
) -> Path:
    """Download a file into the data folder, unless it is complete already; return its path.

    If several processes want one file, one downloads it while others wait. Without locks, each downloads its own copy.
    """
    path = _locate_file(remote, folder)
    _get_known_checksum(remote, path)  # raises before the transfer, not after
    lock, part = path.with_name(f".{path.name}.lock"), PartialFile(path.with_name(f"{path.name}.part"))
    with ExitStack() as stack:
        if not path.is_file() or any(each.exists() for each in (lock, part.path, part.version_file)):
            with explain_os_errors(path, DATASETS):
                wait = partial(log, f"another process is fetching {path.name}: waiting for it")
                is_locked = stack.enter_context(acquire_lock(lock, wait=wait))
            remove_leftovers(path.parent)
            if not path.is_file():
                part = part if is_locked else PartialFile(temporary_path(path), lasting=False)
                _try_until_whole(remote, path, part, log, retries)
                return path
            with explain_os_errors(path, DATASETS):
                part.delete()  # left by a process that was killed after the final rename
    verify_download(remote, folder)
    return path


def verify_download(remote: RemoteFile, folder: Path) -> None:
    """Compare a file with the checksum of its card, or with that of its first download."""
    path = remote.path(folder)
    known = _get_known_checksum(remote, path)
    with _explain_read_errors(path):
        checksum = hash_file(path)
        damage = find_damage(path) if known is None else None
    if known and checksum != known:
        raise UserError(
            f"{path} was altered: its sha256 is {checksum}, expected {known}. Delete it and fetch it again."
        )
    if damage:
        raise UserError(f"{path} is damaged: {damage}. Delete it and fetch it again.")
    if known is None:
        _save_checksum(path, checksum)


def _locate_file(remote: RemoteFile, folder: Path) -> Path:
    """Return the path of the file in the data folder; raise an error if it is unsafe or not a file."""
    path, relative = remote.path(folder), PurePath(remote.file)
    if relative.is_absolute() or ".." in relative.parts:
        raise UserError(
            f"{remote.file}: files are fetched into {folder}. The card must name a path in this folder, without '..'."
        )
    if path.exists() and not path.is_file():
        raise UserError(f"{path} exists but is not a file. Move it, or {DATASETS}.")
    return path


def _try_until_whole(
    remote: RemoteFile, path: Path, part: PartialFile, log: Log, retries: RetryPolicy
) -> None:
    """Try until the file is complete, attempts make no progress, or the time for all attempts is over."""
    deadline = time.monotonic() + retries.max_seconds
    attempts, idle, max_size = 0, 0, part.size
    known = _get_known_checksum(remote, path) is not None
    while True:
        try:
            transfer_missing(remote, path, part, log, retries, known=known, deadline=deadline)
            break
        except InterruptedTransferError as reason:
            if isinstance(reason, StalePartError):
                part.delete()
            attempts += 1
            idle = 1 if part.size > max_size and not isinstance(reason, StalledTransferError) else idle + 1
            max_size = max(max_size, part.size)
            pause = max(min(retries.pause * 2 ** (idle - 1), retries.max_pause), reason.retry_after)
            gives_up = idle >= retries.max_idle_attempts or attempts >= retries.max_attempts
            if (
                gives_up
                or reason.retry_after > retries.max_retry_after
                or time.monotonic() + pause > deadline
            ):
                raise _make_given_up_error(remote, path, part, attempts, reason) from None
            log(f"{path.name}: {reason}; retrying in {pause:.0f} s")
            time.sleep(pause)
    _check_and_rename(remote, path, part, log)


def _make_given_up_error(
    remote: RemoteFile, path: Path, part: PartialFile, attempts: int, reason: InterruptedTransferError
) -> RunError:
    """Return the error after the last attempt. A partial file that cannot be resumed is deleted."""
    kept, later = "Nothing was kept. ", ""
    if part.is_resumable and part.lasting:
        kept = f"{part.size:,} bytes are kept in {part.path}; the same command resumes the download. "
    else:
        part.delete()
    if reason.retry_after:
        later = f" and asks to wait for {reason.retry_after:,.0f} s"
    tried = f"{attempts} attempts" if attempts > 1 else "one attempt"
    return RunError(
        f"{remote.display_url} could not be fetched in {tried}: {reason}{later}. {kept}{suggest_alternatives(path)}"
    )


def _check_and_rename(remote: RemoteFile, path: Path, part: PartialFile, log: Log) -> None:
    """Verify the file and rename it. A process that is killed before the rename only has to verify it again."""
    if remote.bytes is not None and part.size != remote.bytes:
        size = part.size
        part.delete()
        raise make_size_error(remote, path, size)
    log(f"{path.name}: checking {part.size / 1e6:,.0f} MB")
    known = _get_known_checksum(remote, path)
    with _explain_read_errors(part.path):
        sync_file(part.path)
        is_page = _is_web_page(part.path)
        checksum = hash_file(part.path)
        damage = find_damage(part.path, path.name) if known is None and not is_page else None
    if is_page and checksum != known:
        part.delete()
        raise make_web_page_error(remote, path)
    if known and checksum != known:
        part.delete()
        hint = ""
        if not remote.sha256:
            hint = f"If another version is published now, delete {_get_checksum_file(path)}. "
        raise UserError(
            f"{remote.display_url} is not the expected file: its sha256 is {checksum}, expected {known}. Nothing was "
            f"kept. {hint}{suggest_alternatives(path)}"
        )
    if damage:
        part.delete()
        raise RunError(
            f"{remote.display_url} arrived damaged, or was published damaged: {damage}. Nothing was kept. "
            f"{suggest_alternatives(path)}"
        )
    if known is None:
        _save_checksum(path, checksum)
    with explain_os_errors(path, DATASETS):
        part.path.rename(path)
        sync_folder(path.parent)
        part.version_file.unlink(missing_ok=True)


@contextmanager
def _explain_read_errors(path: Path) -> Iterator[None]:
    """Convert errors of the operating system while `path` is read to readable ones."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}. It was not changed.") from error


def _is_web_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1024).lstrip()[:20].lower().startswith(PAGE_STARTS)


def _get_checksum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _save_checksum(path: Path, sha256: str) -> None:
    write_text(_get_checksum_file(path), f"{sha256}  {path.name}\n", DATASETS)


def _get_known_checksum(remote: RemoteFile, path: Path) -> str | None:
    """Return the checksum of the card, or else that of the first download, if any."""
    checksum_file = _get_checksum_file(path)
    if remote.sha256 or not checksum_file.is_file():
        return remote.sha256.lower() if remote.sha256 else None
    with _explain_read_errors(checksum_file):
        text = checksum_file.read_text(errors="replace", encoding="utf-8")
    checksum = re.match(r"[0-9a-fA-F]{64}\b", text)
    if checksum is None:
        raise UserError(
            f"{checksum_file} does not hold a sha256 but {text[:20]!r}. Write the output of `sha256sum` for the "
            "trusted file into it, or delete it to trust the file as it is."
        )
    return checksum[0].lower()


# All published files of a dataset's card.


def fetch_dataset(root: Path, name: str, log: Log) -> list[Path]:
    """Fetch the missing files of a dataset and verify the others. Generated and imported graphs have none."""
    return fetch_card_files(root, load_card(root, name), log)


def fetch_card_files(root: Path, card: DatasetCard, log: Log) -> list[Path]:
    """Fetch the files of a card, which need not be in the catalog yet."""
    return [download_file(remote, find_data_folder(root), log) for remote in card.source.list_remote_files()]
