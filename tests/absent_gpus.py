"""Compile Triton kernels for GPUs that this machine does not have."""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

A100, H100, MI300 = GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Absent:
    """The driver of a GPU that this machine does not have. Triton caches compiled kernels by device."""

    def __init__(self, target: GPUTarget) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: target
        self.get_current_stream = lambda _device: 0


def compile_only(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Make launches compile their kernels without running them. Return the list that collects them, by name."""
    compiled: list[tuple[str, Any]] = []
    run = JITFunction.run

    def record(self: Any, *operands: Any, grid: Any, warmup: bool, **options: Any) -> None:
        compiled.append((self.fn.__name__, run(self, *operands, grid=grid, warmup=True, **options)))

    monkeypatch.setattr(JITFunction, "run", record)
    return compiled


class Usage(NamedTuple):
    """What a thread of an NVIDIA kernel uses: registers, and bytes of the stack and of local memory."""

    registers: int
    stack: int
    local: int


def read_usage(kernel: Any, folder: Path) -> Usage:
    """Read the resource usage from the machine code of a kernel. The folder is for a temporary file."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    text = subprocess.run([CUOBJDUMP, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    return Usage(*(int(n) for n in re.findall(r"(?:REG|STACK|LOCAL):(\d+)", text)))
