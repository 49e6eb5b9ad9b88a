"""Runs a program of others by the user's own command, keeps what it prints, and lets it be seen meanwhile."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.run.provenance import provenance


class Done(NamedTuple):
    """A command that came to its end."""

    exit_code: int
    provenance: dict[str, Any]


def run(command: Sequence[str], folder: Path, log: Path) -> Done:
    """Runs a command in a folder, and writes what it prints to `log`."""
    started = time.time()
    with _started(command, folder) as program:
        try:
            _follow(program, log)
        finally:
            with suppress(ProcessLookupError):  # nobody of it is left, as a rule
                os.killpg(program.pid, signal.SIGKILL)
    told = {**provenance(folder), "versions": None, "threads": None, "allocator": None}
    times = {"started": started, "finished": time.time()}
    return Done(program.returncode, {**told, "command": shlex.join(command), **times})


def _started(command: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Its processes share one log, so none of them may keep back a part of a line."""
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(
            f"{shlex.join(command)} cannot be started in {folder}: {error.strerror}. --cwd names the checkout."
        ) from None


def _follow(program: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until its last process has said its last."""
    assert program.stdout is not None
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        for line in program.stdout:
            file.write(line)
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()
    program.wait()
