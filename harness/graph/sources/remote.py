"""A published file: its URL, and its size and checksum if they are known."""

import os
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from harness.base.errors import UserError
from harness.base.untrusted import redact_secrets
from harness.base.validation import Frozen

MIRROR = "HARNESS_MIRROR"
"""The environment variable that names a mirror: every URL is requested as BASE/HOST/PATH?QUERY under this base."""


class RemoteFile(Frozen):
    """A published file that a source reads."""

    url: str
    file: str
    """The path of the file under the data folder."""
    bytes: int | None = None
    sha256: str | None = None
    """The published checksum. Without one, the checksum of the first download is used."""

    @property
    def request_url(self) -> str:
        """The URL to request, on the mirror if one is set."""
        base, parts = os.environ.get(MIRROR), _parse_http_url(self.url, self.url)
        if not base:
            return self.url
        _parse_http_url(base, f"{MIRROR}={base}")
        query = f"?{parts.query}" if parts.query else ""
        return f"{base.rstrip('/')}/{parts.netloc}{quote(parts.path, safe='/%')}{query}"

    @property
    def display_url(self) -> str:
        """`request_url` for messages, without tokens in the query."""
        return redact_secrets(self.request_url)

    def path(self, folder: Path) -> Path:
        """Return the path of the file in a data folder."""
        return folder / self.file


def _parse_http_url(url: str, typed: str) -> SplitResult:
    """Parse a URL, which must use http or https and have a host and no user."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UserError(
            f"{redact_secrets(typed)}: a URL with a user name or a password is not accepted, since URLs are shown and "
            "logged. Write https://HOST/PATH, and let your proxy (https_proxy) add the credentials."
        )
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise UserError(
            f"{redact_secrets(typed)} is not a URL: {redact_secrets(str(error))}. Write https://HOST/PATH, with an "
            "IPv6 address in brackets."
        ) from None
    if parts.scheme not in ("http", "https") or not has_host:
        raise UserError(
            f"{redact_secrets(typed)}: only http and https are supported. Write https://HOST/PATH."
        )
    return parts
