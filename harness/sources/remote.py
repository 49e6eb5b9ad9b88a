"""A published file: its URL, and its size and checksum where they are known."""

import os
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from harness.errors import UserError
from harness.untrusted import redact
from harness.validation import Frozen

MIRROR = "HARNESS_MIRROR"
"""The environment variable that names a mirror: every URL is asked for as BASE/HOST/PATH?QUERY under this base."""


class RemoteFile(Frozen):
    """A file that a source reads and that is published."""

    url: str
    file: str
    """The path of the file under the data folder."""
    bytes: int | None = None
    sha256: str | None = None
    """The published checksum; without one, the checksum of the first download is kept."""

    @property
    def asked(self) -> str:
        """The URL that is asked for: on the mirror, if one is set."""
        base, parts = os.environ.get(MIRROR), _over_http(self.url, self.url)
        if not base:
            return self.url
        _over_http(base, f"{MIRROR}={base}")
        query = f"?{parts.query}" if parts.query else ""
        return f"{base.rstrip('/')}/{parts.netloc}{quote(parts.path, safe='/%')}{query}"

    @property
    def shown(self) -> str:
        """`asked` for a message: a token in the query of the URL is left out."""
        return redact(self.asked)

    def path(self, folder: Path) -> Path:
        """The path of the file, under this data folder."""
        return folder / self.file


def _over_http(url: str, typed: str) -> SplitResult:
    """The parts of a URL, which must use http or https and name a host, and no user."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UserError(
            f"{redact(typed)}: a URL with a user name or a password is not accepted, since URLs are shown and logged. "
            "Write https://HOST/PATH, and let a proxy of yours (https_proxy) add what the server asks for."
        )
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise UserError(
            f"{redact(typed)} is no URL: {redact(str(error))}. Write https://HOST/PATH; an IPv6 address in brackets."
        ) from None
    if parts.scheme not in ("http", "https") or not is_whole:
        raise UserError(f"{redact(typed)}: only http and https are fetched. Write https://HOST/PATH.")
    return parts
