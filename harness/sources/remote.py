"""A file that somebody publishes: where, and what is known of it."""

import os
from pathlib import Path
from urllib.parse import quote, urlsplit

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
        base, parts = os.environ.get(MIRROR), urlsplit(self.url)
        if parts.scheme not in ("http", "https"):
            raise UserError(f"{self.url}: only http and https are fetched.")
        query = f"?{parts.query}" if parts.query else ""
        return f"{base.rstrip('/')}/{parts.netloc}{quote(parts.path)}{query}" if base else self.url

    def path(self, folder: Path) -> Path:
        """Where it belongs, under the data folder."""
        return folder / self.file
