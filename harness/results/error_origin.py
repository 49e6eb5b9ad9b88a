"""Where an error began: the file, the line and the package, from the traceback of a failed run."""

import re

PROJECT_FRAME = re.compile(r'File "[^"\n]*?((?:harness|strategies)/[\w/]+\.py)", line (\d+), in ')
"""A frame of a Python traceback in a file of the harness or of its strategies."""


def find_error_origin(trace: str) -> str:
    """Return the file, the line and the package in which an error began, or an empty string if no frame tells.

    The origin is the innermost frame in a file of the harness or of its strategies.
    """
    frames = PROJECT_FRAME.findall(trace)
    if not frames:
        return ""
    file, line = frames[-1]
    *package, _ = file.removeprefix("harness/").removesuffix(".py").split("/")
    return f"{file}, line {line}" + (f" ({'.'.join(package)})" if package else "")
