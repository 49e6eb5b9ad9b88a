"""A file that somebody publishes: where, and what is known of it."""

import os
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from harness.errors import UserError
from harness.validation import Frozen

MIRROR = "HARNESS_MIRROR"
"""Of the environment: a base under which every URL is asked for, as BASE/HOST/PATH?QUERY."""


class Remote(Frozen):
    """What a source says of a file that it reads."""

    url: str
    file: str
    """Its path under the data folder."""
    bytes: int | None = None
    sha256: str | None = None
    """Where none is published, that of the first download is kept."""

    @property
    def asked(self) -> str:
        """The URL that is asked for: of a mirror, if there is one."""
        base, parts = os.environ.get(MIRROR), _over_http(self.url, self.url)
        if not base:
            return self.url
        _over_http(base, f"{MIRROR}={base}")
        query = f"?{parts.query}" if parts.query else ""
        return f"{base.rstrip('/')}/{parts.netloc}{quote(parts.path, safe='/%')}{query}"

    def path(self, folder: Path) -> Path:
        """Where it belongs, under the data folder."""
        return folder / self.file


def _over_http(url: str, told: str) -> SplitResult:
    """The parts of a URL, which must be one of http or https that names a host."""
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise UserError(
            f"{told} is no URL: {error}. Write https://HOST/PATH; an IPv6 address in brackets."
        ) from None
    if parts.scheme not in ("http", "https") or not is_whole:
        raise UserError(f"{told}: only http and https are fetched. Write https://HOST/PATH.")
    return parts
