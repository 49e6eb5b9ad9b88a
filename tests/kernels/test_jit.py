"""Compiled code is cached on disk; without a place for the cache, functions are compiled anyway."""

import numba
import pytest

from harness.kernels import jit
from harness.kernels.jit import compiled
from harness.kernels.tiles import multiply_rows


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
