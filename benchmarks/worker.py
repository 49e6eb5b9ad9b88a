"""A library in a separate environment: a process runs it and answers turn by turn."""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.turns import Time
from harness.base.errors import UserError

FOLDER = Path(__file__).parent / "workers"


class Worker:
    """The other end of a file in `workers`, which runs in another Python with some threads.

    The worker inherits the environment variables of this process, such as the allocator's.
    """

    def __init__(self, python: str, file: str, threads: int = 1) -> None:
        self._file = file
        own = {"OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [python, "-E", str(FOLDER / file)],  # -E: without PYTHONPATH, which may lead to our packages
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **own},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def ask(self, do: str, **arguments: object) -> Any:
        """Return the answer to a request."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise UserError(f"{self._file} ended with code {self._process.wait()}: see its error above")
        return json.loads(answer)

    def time(self, call: str, repeat: int) -> Time:
        """Return the time of a call that the worker has prepared."""
        return Time(*self.ask("turn", call=call, repeat=repeat))

    def result(self, call: str, folder: Path) -> NDArray[Any]:
        """Return what a call computes."""
        file = folder / "result.npy"
        self.ask("result", call=call, file=str(file))
        value: NDArray[Any] = np.load(file)
        return value
