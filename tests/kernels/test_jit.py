"""Compiled code is cached on disk; without a place for the cache, functions are compiled anyway."""

import subprocess
import sys
from typing import Any

import numba
import pytest

from harness.base.locks import try_lock
from harness.kernels import jit
from harness.kernels.jit import compiled
from harness.kernels.tiles import multiply_rows
from tests.processes import wait_until
from tests.python_path import CHECKOUT, with_python_path


def test_compiled_kernels_are_cached():
    assert multiply_rows.stats.cache_path is not None


def test_function_without_a_cache_location_is_compiled():
    """A function without a file behaves like one in a read-only folder: neither has a place for the cache."""
    space: dict = {}
    exec("def double(x):\n    return 2 * x", space)
    double = compiled()(space["double"])
    assert isinstance(double, numba.core.registry.CPUDispatcher)
    assert double(21) == 42


@pytest.mark.parametrize(("build", "imported"), [(None, []), ("CUDA 12.8", ["triton.runtime"])])
def test_fork_server_imports_triton_only_if_torch_is_built_for_gpus(
    monkeypatch: pytest.MonkeyPatch, build: str | None, imported: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(jit, "gpu_build", lambda: build)
    monkeypatch.setattr(jit, "import_module", seen.append)
    jit.warm_up_compiler()
    assert seen == imported


CALLS_AT_ONCE = """
import sys, time
from pathlib import Path
from harness.kernels.jit import compiled

@compiled()
def double(x):
    return 2 * x

ready, start = map(Path, sys.argv[1:])
ready.touch()
while not start.exists():
    time.sleep(0.001)
assert double(21) == 42
print(sum(double.stats.cache_misses.values()), sum(double.stats.cache_hits.values()))
"""


@pytest.mark.long
def test_of_processes_that_call_a_kernel_at_once_one_compiles_it(tmp_path):
    script, start = tmp_path / "kernel.py", tmp_path / "start"
    script.write_text(CALLS_AT_ONCE)
    environment = with_python_path(CHECKOUT, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    ready = [tmp_path / f"ready-{number}" for number in range(4)]
    calls = [
        subprocess.Popen(
            [sys.executable, script, path, start], env=environment, stdout=subprocess.PIPE, text=True
        )
        for path in ready
    ]
    wait_until(lambda: all(path.exists() for path in ready))
    start.touch()
    assert sorted(call.communicate(timeout=120)[0].split() for call in calls) == [["0", "1"]] * 3 + [
        ["1", "0"]
    ]
    assert not list(tmp_path.rglob("*.lock"))


def test_function_that_cannot_be_compiled_leaves_no_lock():
    def wrong(x):
        return x.absent

    kernel: Any = compiled()(wrong)
    for _ in range(2):
        with pytest.raises(numba.TypingError):
            kernel(1)
    with try_lock(kernel._cache._lock) as is_free:
        assert is_free
    kernel._cache._lock.unlink()


def test_compilation_is_reported_once(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text("""
from harness.kernels.jit import compiled, report_compilations
report_compilations(lambda name: print("compiling", name))

@compiled()
def double(x):
    return 2 * x

assert double(21) == 42
""")
    environment = with_python_path(CHECKOUT, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    printed = [
        subprocess.run([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True).stdout
        for _ in range(2)
    ]
    assert printed == ["compiling double\n", ""]
