"""The device on which a rank computes: a GPU or the host. No other module of the library calls `torch.cuda`.

GPU work is asynchronous: each stream runs its work in order, and streams wait for each other through events. torch uses
the name `cuda` for ROCm GPUs, too.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from inspect import signature
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.library import Library

GPU: Final = "cuda"
GPU_KERNELS = "CUDA"
"""The dispatch key of GPU kernels in `torch.library`."""
T = TypeVar("T")


def is_gpu(device: torch.device) -> bool:
    return device.type == GPU


def is_on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def gpu_count() -> int:
    """Return the number of visible GPUs."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_build() -> str | None:
    """Return the GPU platform that torch was built for, with its version; None for a CPU-only build."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else None


def use_gpu(index: int) -> torch.device:
    """Make a GPU the current device of this process, and return it."""
    device = torch.device(GPU, index)
    torch.cuda.set_device(device)
    return device


def gpu_name() -> str | None:
    """Return the name of the current GPU, if there is one."""
    return torch.cuda.get_device_name() if gpu_count() else None


def gpu_identity(device: torch.device) -> str:
    """Return the UUID of a GPU, which is the same for all processes of a machine."""
    return str(torch.cuda.get_device_properties(device).uuid)


class GpuProperties(NamedTuple):
    """Properties of a GPU, as reported by its driver."""

    name: str
    memory: int
    """In bytes."""
    cache: int
    """The size of the L2 cache in bytes; 0 if this torch does not report it."""


def gpu_properties(device: torch.device) -> GpuProperties:
    properties = torch.cuda.get_device_properties(device)
    return GpuProperties(properties.name, properties.total_memory, getattr(properties, "L2_cache_size", 0))


def free_memory(device: torch.device) -> int:
    """Return the free memory of a GPU in bytes."""
    return int(torch.cuda.mem_get_info(device)[0])


def synchronize(device: torch.device) -> None:
    """Wait for all work on a GPU. Does nothing on the host."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def gpu_utilisation(device: torch.device) -> float:
    """Return the utilisation of a GPU in percent. Raises the driver's error if it is not available."""
    return float(torch.cuda.utilization(device))


# Memory.

# A replay has no device, so a custom operator represents a copy between host and device.
OPERATORS = Library("harness", "FRAGMENT")
OPERATORS.define("cross(Tensor x) -> Tensor")
HOST_DEVICE_COPY = torch.ops.harness.cross.default
for _kind in ("CPU", "Meta"):
    OPERATORS.impl("cross", partial(torch.empty_like, device="meta"), _kind)


def upload(x: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device. Copies to a GPU go through pinned memory and are asynchronous."""
    if is_gpu(device) and x.is_cpu:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def record_upload(x: Tensor, device: torch.device) -> Tensor:
    """`upload` for a tensor that stays on the host. A replay, which has no device, records the copy."""
    return HOST_DEVICE_COPY(x) if device.type == "meta" else upload(x, device)


def peak_memory(device: torch.device) -> int:
    """Return the peak GPU memory of this process in bytes; 0 on the host."""
    return torch.cuda.max_memory_allocated(device) if is_gpu(device) else 0


def reset_memory(device: torch.device) -> None:
    """Release the unused cached memory of a GPU, and reset its peak."""
    if is_gpu(device):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


# Custom kernels.


def elementwise_kernel(source: str, **numbers: int) -> Callable[..., Tensor]:
    """Return an elementwise function of GPU tensors, which are broadcast, as one kernel.

    `source` is a C++ template, compiled at the first call; `numbers` are scalar arguments with their defaults.
    """
    kernel: Callable[..., Tensor] = torch.cuda.jiterator._create_jit_fn(source, **numbers)
    return kernel


@cache
def can_run_triton() -> bool:
    """Return True if the package `triton` can compile kernels for the GPU of this process."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except ImportError:
        return False
    except Exception as error:  # errors of compilers and drivers have many types
        reason = str(error).partition("\n")[0]
        warnings.warn(f"Triton cannot be used on this GPU: {type(error).__name__}: {reason}", stacklevel=2)
        return False
    return True


# Determinism.

NO_FIXED_ORDER = "does not have a deterministic implementation"
"""torch's warning about a nondeterministic operation, after the name of the operation."""


@contextmanager
def prefer_determinism() -> Iterator[set[str]]:
    """Use deterministic algorithms where torch has them. Yields a set that collects the nondeterministic operations.

    Operations without a deterministic implementation run as usual, without a warning. Deterministic ones may take more
    time and memory, so this is not the default. cuBLAS reads its setting when it is first used.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    was_filling = memory.fill_uninitialized_memory
    nondeterministic: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect_operation(message: Warning | str, *place: Any) -> None:
            operation, found, _ = str(message).partition(f" {NO_FIXED_ORDER}")
            if found:
                nondeterministic.add(operation)
            else:
                show(message, *place)

        warnings.filterwarnings("always", f".* {NO_FIXED_ORDER}")
        warnings.showwarning = collect_operation  # type: ignore[assignment]
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # uninitialised memory is never read
        try:
            yield nondeterministic
        finally:
            torch.use_deterministic_algorithms(was_enabled, warn_only=was_warn_only)
            memory.fill_uninitialized_memory = was_filling


# Time, and streams.


class GpuClock:
    """A clock of events on the current stream of a GPU, which are read after the epoch."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def elapsed(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later)) / 1e3


class GraphClock(GpuClock):
    """A clock of events inside a CUDA graph, which every replay records again."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record()
        return event


class DeviceGraph:
    """Work on a GPU that is captured once in a CUDA graph and runs in every replay.

    Nothing runs during the capture. Tensors allocated in it keep their memory as long as the graph exists; the caller
    must keep tensors that were allocated before. Host scalars keep the values that they have during the capture.
    """

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, issue: Callable[[], T]) -> T:
        """Capture the work that `issue` issues, and return its result, which the first replay computes."""
        failed: Exception | None = None
        issued: list[T] = []
        try:
            # Other threads may continue, such as NCCL's watchdog.
            with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
                try:
                    issued.append(issue())
                except Exception as error:  # ending a failed capture raises another error
                    failed = error
        except RuntimeError as error:
            failed = failed or error
        if failed:
            raise failed
        return issued[0]

    def replay(self) -> None:
        """Run the captured work on the current stream."""
        self._graph.replay()


def has_graph_events() -> bool:
    """Return True if this torch supports events inside CUDA graphs, which `GraphClock` needs."""
    return "external" in signature(torch.cuda.Event).parameters


class SideStream:
    """A second stream of a GPU, which runs work concurrently with the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def wait_for_current_stream(self) -> None:
        """Make this stream wait for everything issued to the current stream so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def block_current_stream(self) -> None:
        """Make the current stream wait for everything issued to this stream so far."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def run(self, make: Callable[[], T]) -> tuple[T, torch.cuda.Event]:
        """Call `make` on this stream; return its result and an event recorded after it."""
        with torch.cuda.stream(self._stream):
            return make(), self._stream.record_event()

    def block_current_stream_until(self, made: torch.cuda.Event) -> None:
        """Make the current stream wait for an event of this stream."""
        torch.cuda.current_stream(self._device).wait_event(made)
