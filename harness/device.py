"""The device on which a rank computes: a GPU, or the host itself. No other module of the library asks torch for GPUs.

A GPU works beside the host, on streams: what is issued to one stream is done in order, and streams wait for each other
by events. `cuda` is torch's name for the GPUs of ROCm, too.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from inspect import signature
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.library import Library

GPU: Final = "cuda"
GPU_KERNELS = "CUDA"
"""The kernels for GPUs in a library of operators, by torch's name."""
T = TypeVar("T")


def is_gpu(device: torch.device) -> bool:
    return device.type == GPU


def is_on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def gpu_count() -> int:
    """The number of GPUs that this process sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_build() -> str | None:
    """The platform for whose GPUs torch was built, with its version; None if for no GPU."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else None


def pairs_without_peer_access() -> list[tuple[int, int]]:
    """The pairs of GPUs of which the first cannot read the memory of the second."""
    return [
        pair for pair in combinations(range(gpu_count()), 2) if not torch.cuda.can_device_access_peer(*pair)
    ]


def use_gpu(index: int) -> torch.device:
    """A GPU, which becomes the current one of this process."""
    device = torch.device(GPU, index)
    torch.cuda.set_device(device)
    return device


def gpu_name() -> str | None:
    """The name of the current GPU, if there is one."""
    return torch.cuda.get_device_name() if gpu_count() else None


def gpu_identity(device: torch.device) -> str:
    """The name by which processes of one machine recognise the same GPU."""
    return str(torch.cuda.get_device_properties(device).uuid)


class GpuProperties(NamedTuple):
    """What the driver says of a GPU."""

    name: str
    memory: int
    """Bytes."""
    cache: int
    """The bytes of the cache that all of its processors share (L2); 0 if this torch does not know."""


def gpu_properties(device: torch.device) -> GpuProperties:
    properties = torch.cuda.get_device_properties(device)
    return GpuProperties(properties.name, properties.total_memory, getattr(properties, "L2_cache_size", 0))


def free_memory(device: torch.device) -> int:
    """The free memory of a GPU, in bytes."""
    return int(torch.cuda.mem_get_info(device)[0])


def synchronize(device: torch.device) -> None:
    """Waits until a GPU has done everything; the host always has."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def gpu_utilisation(device: torch.device) -> float:
    """The percentage that a GPU's driver tells; an error of the driver's own if it does not."""
    return float(torch.cuda.utilization(device))


# Memory.


# A replay has no device, so an operator of its own stands for a copy between host and device.
OPERATORS = Library("harness", "FRAGMENT")
OPERATORS.define("cross(Tensor x) -> Tensor")
HOST_DEVICE_COPY = torch.ops.harness.cross.default
for _kind in ("CPU", "Meta"):
    OPERATORS.impl("cross", partial(torch.empty_like, device="meta"), _kind)


def upload(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device. It goes through pinned memory, from which a GPU copies by itself."""
    if is_gpu(device) and x.is_cpu:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def record_upload(x: Tensor, device: torch.device) -> Tensor:
    """`uploaded`, for a tensor that the host keeps. A replay, which has no device, notes the copy."""
    return HOST_DEVICE_COPY(x) if device.type == "meta" else upload(x, device)


def peak_memory(device: torch.device) -> int:
    """The most bytes of a GPU that this process held; 0 on the host."""
    return torch.cuda.max_memory_allocated(device) if is_gpu(device) else 0


def reset_memory(device: torch.device) -> None:
    """Gives the unused memory of a GPU back, and begins its peak anew."""
    if is_gpu(device):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


# Kernels of our own.


def elementwise_kernel(source: str, **numbers: int) -> Callable[..., Tensor]:
    """A function of tensors on a GPU, which one kernel computes element by element after they are broadcast.

    `source` is a C++ template, compiled when it is first called; `numbers` are arguments with their defaults.
    """
    kernel: Callable[..., Tensor] = torch.cuda.jiterator._create_jit_fn(source, **numbers)
    return kernel


@cache
def can_run_triton() -> bool:
    """True if the package `triton` can compile kernels for the GPU of this process."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except ImportError:
        return False
    except Exception as error:  # its errors about compilers and drivers have many types
        reason = str(error).partition("\n")[0]
        warnings.warn(f"Triton cannot be used on this GPU: {type(error).__name__}: {reason}", stacklevel=2)
        return False
    return True


# Determinism.

NO_FIXED_ORDER = "does not have a deterministic implementation"
"""What torch says of an operation whose bits may differ from run to run, after the name of the operation."""


@contextmanager
def prefer_determinism() -> Iterator[set[str]]:
    """Ask torch for operations that give the same bits in every run. The set collects those for which it has none.

    Operations without a deterministic implementation run as usual, without a warning. Deterministic ones may take more
    time and memory, so a run does not ask for them by itself. cuBLAS reads its setting when it is first used.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    without: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(message: Warning | str, *place: Any) -> None:
            operation, found, _ = str(message).partition(f" {NO_FIXED_ORDER}")
            without.add(operation) if found else show(message, *place)

        warnings.filterwarnings("always", f".* {NO_FIXED_ORDER}")
        warnings.showwarning = collect  # type: ignore[assignment]
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # nobody reads it
        try:
            yield without
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            memory.fill_uninitialized_memory = fills


# Time, and streams.


class GpuClock:
    """Events on the current stream of a GPU, read once after the epoch."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def elapsed(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later)) / 1e3


class GraphClock(GpuClock):
    """Events inside a CUDA graph: every replay records them again."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record()
        return event


class DeviceGraph:
    """Work on a GPU that is issued once, while it is captured in a CUDA graph, and runs in every replay.

    Nothing runs during the capture. Tensors that are made in it keep their memory as long as the graph exists; tensors
    that were made before must be kept by the caller. Numbers of the host are those of the capture.
    """

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, issue: Callable[[], T]) -> T:
        """Capture what `issue` issues to the current stream, and return its result, which the first replay fills."""
        failed: Exception | None = None
        issued: list[T] = []
        try:
            # Other threads may go on, as that of NCCL which watches earlier calls.
            with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
                try:
                    issued.append(issue())
                except Exception as error:  # the end of a capture that failed raises an error of its own
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
    """True if this torch has events that a CUDA graph records, as `GraphClock` needs."""
    return "external" in signature(torch.cuda.Event).parameters


class SideStream:
    """A stream beside the one on which a GPU trains."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def wait_for_current_stream(self) -> None:
        """What this stream does from now on waits for everything that was issued to the other so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def block_current_stream(self) -> None:
        """What the other stream does from now on waits for everything that was issued to this one."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def run(self, make: Callable[[], T]) -> tuple[T, torch.cuda.Event]:
        """Issues the kernels of an item to this stream, and an event after them."""
        with torch.cuda.stream(self._stream):
            return make(), self._stream.record_event()

    def block_current_stream_until(self, made: torch.cuda.Event) -> None:
        """What the other stream does from now on waits for an event of this one."""
        torch.cuda.current_stream(self._device).wait_event(made)
