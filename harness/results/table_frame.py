"""The data frames of collected tables, whose KeyError says how a renamed column is named now."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from harness.results.schema import FAILURES, TABLES


class TableFrame(pd.DataFrame):
    """A data frame that differs from others only in the error for a column that has been renamed."""

    @property
    def _constructor(self) -> Callable[..., "TableFrame"]:
        return TableFrame

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            names = key if isinstance(key, list) else [key]
            renamed = [text for name in names if (text := self._describe_new_name(name))]
            if not renamed:
                raise
            raise KeyError(f"{'; '.join(renamed)}: see docs/reference/tables.md") from None

    def _describe_new_name(self, name: Any) -> str:
        """Say how a column of schema 1 is named now; empty if it was not renamed."""
        if name in self.columns:
            return ""
        new = {
            column.name for table in TABLES.values() for column in table.columns if column.recorded == name
        }
        if found := [column for column in self.columns if column in new]:
            return f"{name} is now {found[0]}"
        moved = [column.name for column in FAILURES.columns if column.recorded == name]
        return f"{name} is now {moved[0]} of the table failures" if moved else ""
