"""Ranks on fake GPUs, one each, whose messages keep NCCL's rules."""

import os
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.comm.engine import Engine
from harness.runtime.launch.worker_pool import Pool
from tests.python_path import with_python_path

FAKE = Path(__file__).parent / "fake"


@pytest.fixture(scope="session")
def with_gpus() -> dict[str, str]:
    """The environment of a process that finds eight fake GPUs. The first to ask compiles them, in half a minute."""
    from harness.base.locks import acquire_lock

    if shutil.which("c++") is None:
        absent = "the fake GPUs need a C++ compiler named c++"
        pytest.fail(absent) if os.environ.get("CI") else pytest.skip(absent)
    build = runpy.run_path(str(FAKE / "fake_cuda.py"))
    build["BUILT"].mkdir(parents=True, exist_ok=True)
    with acquire_lock(build["BUILT"] / "lock"):
        build["built"]()
    return with_python_path(FAKE)


@pytest.fixture(scope="session")
def on_gpus(with_gpus: dict[str, str]) -> Iterator[Callable[..., list[Any]]]:
    """`on_gpus(world, function, *arguments)`: the results of a top-level function on every rank, in rank order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", with_gpus["PYTHONPATH"])
        pool = Pool(engine=Engine.NCCL)
    with pool:
        yield pool.run
