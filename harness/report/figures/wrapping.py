"""Wraps and shortens texts whose length a user chooses, by their number of letters."""

from hashlib import sha256
from textwrap import fill

LETTER, LINE = 0.056, 0.125
"""Inches of an average letter of 7 points, and of a line."""
LONGEST_WORD, MOST_WORDS = 80, 300
"""The most letters of a word and the most words of a text that are drawn. The CSV of the figure has them all."""


def elide_word(word: str, letters: int = LONGEST_WORD) -> str:
    """Replace the middle of a long word by a digest, which keeps long words distinct."""
    if len(word) <= letters:
        return word
    middle = f"…{sha256(word.encode(errors='replace')).hexdigest()[:6]}…"
    end = (letters - len(middle)) // 2
    return f"{word[:end]}{middle}{word[-end:]}"


def wrap_text(text: str, letters: int) -> str:
    """Wrap a text to lines of at most this many letters."""
    words = text.split()
    if len(words) > MOST_WORDS:
        words = [*words[: MOST_WORDS // 2], "…", *words[-MOST_WORDS // 2 :]]
    return fill(" ".join(map(elide_word, words)), letters)


def longest_line(texts: list[str]) -> int:
    """Return the letters of the longest line of these texts."""
    return max((len(line) for text in texts for line in text.split("\n")), default=0)
