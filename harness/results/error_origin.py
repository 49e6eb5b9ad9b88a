"""Where an error began: the file, the line and the package, from the traceback of a failed run."""

import re
from typing import NamedTuple

FRAME = re.compile(r'File "([^"\n]+\.py)", line (\d+), in ')
"""A frame of a Python traceback."""
PROJECT = re.compile(r"(?:^|/)((?:harness|strategies)/[\w/]+\.py)$")
"""The path of a file of the harness or of its strategies."""
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3")


class _Frame(NamedTuple):
    """A frame of a traceback in a file of the harness, or of a strategy."""

    file: str
    line: str
    is_strategy: bool

    def describe(self) -> str:
        """Return the file, the line and the package."""
        *package, _ = self.file.removeprefix("harness/").removesuffix(".py").split("/")
        return f"{self.file}, line {self.line}" + (f" ({'.'.join(package)})" if package else "")


def find_error_origin(trace: str) -> str:
    """Return the file, the line and the package in which an error began, or an empty string if no frame tells.

    The origin is the innermost frame in a file of a strategy, which may be a plugin; then the file of the harness that
    raised the error in its call follows. Without such a frame, it is the innermost one in a file of the harness.
    """
    frames = list[_Frame]()
    for path, line in FRAME.findall(trace):
        if project := PROJECT.search(path):
            file = project[1]
            frames.append(_Frame(file, line, file.startswith(("strategies/", "harness/strategies/"))))
        elif frames and not LIBRARY.search(path):  # the harness called it
            frames.append(_Frame("/".join(path.split("/")[-2:]), line, is_strategy=True))
    if not frames:
        return ""
    last = frames[-1]
    own = next((frame for frame in reversed(frames) if frame.is_strategy), last)
    return own.describe() if own is last else f"{own.describe()}, in a call of {last.file}, line {last.line}"
