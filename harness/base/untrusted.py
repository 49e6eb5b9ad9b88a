"""Sanitising of untrusted text for terminals, spreadsheets, file names and publication.

A label, an error, a log or a name may contain anything: control characters that rewrite a terminal, a formula that a
spreadsheet runs, a path, a secret. Each output calls the function for its medium.
"""

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

# A terminal.

JOINERS = "\u200c\u200d"
"""Invisible characters that several writing systems need."""
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that move the cursor, change the writing direction, or are not characters."""


def escape_control(text: str) -> str:
    """Escape all characters that a terminal interprets instead of displaying.

    Newlines and tabs are kept. Escape sequences, carriage returns, direction marks and lone surrogates are escaped.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_escape_character, text))


def escape_line(text: str) -> str:
    """Like `escape_control`, for text that must stay on one line, such as a cell or a label."""
    return escape_control(" ".join(text.splitlines()))


def _escape_character(character: str) -> str:
    if character in "\n\t" or character in JOINERS or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


# A spreadsheet.

FORMULA = re.compile(r"[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf|[+-]", re.IGNORECASE)


def spreadsheet_cell(value: Any) -> Any:
    """Return a value for a cell of a CSV file. Text that a spreadsheet would run as a formula gets an apostrophe."""
    runs = isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if runs else value


# The name of a file.

PLAIN = re.compile(r"[A-Za-z0-9._@-]{1,100}")


def make_file_stem(name: str) -> str:
    """Convert a name of any length and alphabet to a part of a file name. Different names give different parts."""
    if PLAIN.fullmatch(name):
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._@-]+', '-', name)[:60]}~{digest}"


# Names that look like others.

EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}
"""Alphabets that are written together, and with Latin letters, none of which they resemble."""


def find_confusable(name: str) -> str:
    """Say why a name may be taken for another; empty if its letters are of one alphabet, in their normal form."""
    if unicodedata.normalize("NFKC", name) != name:
        return "is not in its normal form (NFKC)"
    alphabets = {unicodedata.name(letter, "?").split()[0] for letter in name if letter.isalpha()}
    if len(mixed := sorted(alphabets - EAST_ASIAN)) > 1:
        return f"mixes {mixed[0].title()} with {mixed[1].title()} letters"
    return ""


def fold_name(name: str) -> str:
    """Return what names share that people would take for the same: letters and digits, whatever their case."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name).casefold()))


# Secrets. Every pattern is bounded, so that the time is linear in the length of a log.

REDACTED = "REDACTED"
SECRET = r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|jwt|credentials?|authorization|cookie|bearer)"
KEY = r"(?:api|access|auth|private|secret|account|signing|license|wandb|comet|neptune|storage)[-_.]?key(?:[-_.]?id)?"
JOINED = r"[\w.-]{0,60}(?:password|passwd|passphrase|(?-i:[A-Z0-9](?:TOKEN|SECRET)))"
"""The end of a name that needs no separator before it, as in PGPASSWORD."""
NAME = rf"(?:(?:[\w.-]{{0,60}}[-_.])?(?:{SECRET}|{KEY}|apikey|auth|sig|signature|pat)|{JOINED})"
SECRET_NAME = re.compile(rf"-{{0,2}}{NAME}", re.IGNORECASE)
VALUE = r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s&'\"]+)"
ASSIGNED = re.compile(rf"(?P<name>(?<![\w.-])-{{0,2}}{NAME}\s*=\s*){VALUE}", re.IGNORECASE)
FOLLOWING = re.compile(rf"(?P<name>(?<![\w.-])--?{NAME}\s+){VALUE}", re.IGNORECASE)
HEADER = re.compile(
    rf"(?P<name>\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{{0,40}}(?:token|key|auth)|{KEY}|{SECRET})\"?'?\s*:\s*)"
    r"(?P<value>(?:(?:bearer|basic|token|digest)\s+)?[^\s,}\"']+|\"[^\"]*\"|'[^']*')",
    re.IGNORECASE,
)
USER_INFO = re.compile(r"(?P<name>\b[a-z][a-z0-9+.-]{0,20}://)(?P<value>[^\s/?#'\"]{1,500})@", re.IGNORECASE)
BEARER = re.compile(r"(?P<name>\bbearer\s+)(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE)
SHAPES = re.compile(
    r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|npm_\w{20,}|dckr_pat_[\w-]{16,}|pypi-[\w-]{16,}|AIza[\w-]{30,}|xapp-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{8,2000}\.[\w-]{4,4000}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,20000}+(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
"""Tokens with a known format."""
MAX_CACHED = 10_000
"""The longest text whose redacted form is kept: the records of many runs repeat most of their texts."""


def redact_secrets(text: str) -> str:
    """Remove passwords, tokens and keys that can be recognised by their names or formats."""
    text = USER_INFO.sub(rf"\g<name>{REDACTED}@", text)
    for pattern in (ASSIGNED, FOLLOWING, HEADER, BEARER):
        text = pattern.sub(rf"\g<name>{REDACTED}", text)
    return SHAPES.sub(REDACTED, text)


def redact_command(words: Sequence[str]) -> str:
    """Return a command line as a user types it, without its secrets."""
    shown, follows_secret = [], False
    for word in words:
        shown.append(REDACTED if follows_secret else redact_secrets(word))
        follows_secret = word.startswith("-") and _is_secret_name(word)
    return shlex.join(shown)


def redact_all(data: Any) -> Any:
    """Redact every text in nested JSON data. Text under the name of a secret is removed entirely."""
    if isinstance(data, Mapping):
        return {
            key: REDACTED
            if isinstance(value, str) and value and _is_secret_name(str(key))
            else redact_all(value)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [redact_all(value) for value in data]
    if isinstance(data, str):
        return redact_secrets(data) if len(data) > MAX_CACHED else _redact_cached(data)
    return data


_redact_cached = lru_cache(maxsize=2048)(redact_secrets)


def _is_secret_name(name: str) -> bool:
    return SECRET_NAME.fullmatch(name) is not None


# Home folders.

HOME_FOLDER = re.compile(
    r"(?<![\w.~-])(?<!:/)(?:/root|(?:/[\w.-]{1,40}){0,2}/(?:home|homes|Users)(?:/[a-z](?=/))?/[\w.-]{1,100}"
    r"|[A-Za-z]:\\{1,2}Users\\{1,2}[\w.-]{1,100})(?![\w-])"
)
"""A home folder on this machine, on a file system of a cluster (/nfs/home/ann, /global/homes/a/ann), or of Windows.
The path of a URL is not one, except in a file: URL."""


def hide_home_folders(text: str) -> str:
    """Write `~` for the home folder of a user, whose name is no one else's business."""
    return HOME_FOLDER.sub("~", text)
