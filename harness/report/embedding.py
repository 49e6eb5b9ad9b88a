"""Data of the page as JSON, so that it is small and safe within an HTML script element."""

import json
from typing import Any

import numpy as np
import pandas as pd


class TextTable:
    """Distinct texts with their numbers, in the order in which they were added."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def intern(self, text: str) -> int:
        """Return the number of a text, which is added if it is new."""
        return self.numbers.setdefault(text, len(self.numbers))


def encode_frame(frame: pd.DataFrame, texts: TextTable) -> dict[str, Any]:
    """Return the columns of a frame: numbers with six digits, texts as their numbers in `texts`.

    A column whose values are all the same has one value.
    """
    return {str(name): _encode_column(frame[name], texts) for name in frame}


def _encode_column(column: "pd.Series[Any]", texts: TextTable) -> dict[str, Any]:
    is_number = pd.api.types.is_numeric_dtype(column)
    values = _encode_numbers(column) if is_number else _encode_texts(column, texts)
    constant = len(set(values)) == 1
    return {"values": values[:1] if constant else values} | ({} if is_number else {"texts": True})


def _encode_numbers(column: "pd.Series[Any]") -> list[float | int | None]:
    numbers = column.to_numpy(dtype=float, na_value=np.nan)
    return [_shorten(value) if np.isfinite(value) else None for value in numbers.tolist()]


def _shorten(value: float) -> float | int:
    """Return a whole number as an integer, and any other with six digits."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.6g}")


def _encode_texts(column: "pd.Series[Any]", texts: TextTable) -> list[int | None]:
    codes, distinct = pd.factorize(column)
    numbers = [texts.intern(str(value)) for value in distinct]
    return [numbers[code] if code >= 0 else None for code in codes.tolist()]


def dump_json(document: Any) -> str:
    """Return JSON without the characters that HTML reads as markup."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "&<>\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
