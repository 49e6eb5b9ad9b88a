"""torch.cuda on a machine without a GPU, for tests: devices in the host's memory whose rules are a GPU's.

`fake_cuda.cpp` has the devices. This module builds it, puts its answers into `torch.cuda`, and notes where the host
waits. `fake_nccl.py` has the messages between ranks. Everything holds for the whole process.
"""

import ctypes
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
BUILT = PROJECT / "build" / "fake_cuda"

Wait = tuple[str, str]
"""What the host waited for, and the file and line of the project that made it wait."""
waits: Counter[Wait] = Counter()
QUEUED = "host to device, pinned", "device to host, pinned"
UNWARNED = (*QUEUED, "synchronize device")
"""Of these torch does not warn: no host waits for the copies, and the last is what the caller asked for."""
debug = SimpleNamespace(sync="default")
"""What `torch.cuda.set_sync_debug_mode` chose; a wait is no error in any mode."""


def built() -> Path:
    """The compiled devices, built once for each source and version of torch."""
    import torch
    from torch.utils import cpp_extension

    source = HERE / "fake_cuda.cpp"
    text = source.read_bytes() + f"{torch.__version__} {sys.version}".encode()
    library = BUILT / f"fake_cuda-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if library.exists():
        return library
    BUILT.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    libraries = Path(torch.__file__).parent / "lib"
    includes = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    compile_into(
        unfinished,
        *(str(source), "-DTORCH_EXTENSION_NAME=fake_cuda", *(f"-I{folder}" for folder in includes)),
        *(f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
    )
    unfinished.replace(library)
    return library


def compile_into(library: Path, *words: str) -> None:
    command = ("c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", *words, "-o", str(library))
    subprocess.run(command, check=True)


def loaded() -> Any:
    """The compiled module of this process."""
    if "fake_cuda_devices" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_cuda", built())
        assert spec is not None and spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["fake_cuda_devices"] = module
    return sys.modules["fake_cuda_devices"]


def elementwise(
    source: str, name: str, _by_reference: bool, results: int, tensors: Sequence[Any], numbers: dict[str, int]
) -> Any:
    """A kernel that a program has in C++ for the compiler of a GPU, and that the host's compiler reads here.

    As on a GPU, tensors are broadcast, and no host waits for the result. All are whole numbers of 64 bits.
    """
    import torch
    from fake_nccl import unseen

    assert results == 1 and all(x.dtype == torch.int64 for x in tensors)
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    made = torch.zeros(shape, dtype=torch.int64, device=tensors[0].device)
    words = [ctypes.c_int64(number) for number in numbers.values()]
    kernel = compiled_kernel(source, name, len(tensors), len(words))

    def run(made: Any, *tensors: Any) -> None:
        loaded().touch(name, tensors, [made], False)
        with unseen():
            operands = [loaded().host(x).expand(shape).contiguous() for x in tensors]
            pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*operands, loaded().host(made))]
        kernel(ctypes.c_int64(made.numel()), *pointers, *words)

    if loaded().is_capturing():
        held = [loaded().Held(x) for x in (made, *tensors)]
        loaded().add_node(lambda: run(*(x.tensor() for x in held)))
    run(made, *tensors)
    return made


@cache
def compiled_kernel(source: str, name: str, tensors: int, numbers: int) -> Any:
    """The loop over all elements around a kernel's source, compiled once for all processes."""
    operands, words = [f"x{i}" for i in range(tensors)], [f"n{i}" for i in range(numbers)]
    parameters = [
        "i64 count",
        *(f"const i64* {x}" for x in operands),
        "i64* made",
        *(f"i64 {n}" for n in words),
    ]
    given = ", ".join([*(f"{x}[i]" for x in operands), *words])
    text = f"""#include <cstdint>
using i64 = std::int64_t;
{source}
extern "C" void run({", ".join(parameters)}) {{ for (i64 i = 0; i < count; ++i) made[i] = {name}<i64>({given}); }}
"""
    library = BUILT / f"kernel-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        written = library.with_suffix(f".{os.getpid()}.cpp")
        written.write_text(text)
        compile_into(written.with_suffix(".so"), str(written))
        written.with_suffix(".so").replace(library)
        written.unlink()
    return ctypes.CDLL(str(library)).run


def note(what: str) -> None:
    """Counts a wait under the innermost line of the project that caused it, and warns of it where torch would."""
    import torch

    where = place()
    waits[what, where] += 1
    if what not in QUEUED:
        with torch._C._profiler._RecordFunctionFast("cudaStreamSynchronize"):
            pass  # what a profiler shows
    if debug.sync == "warn" and what not in UNWARNED:
        file, _, line = where.rpartition(":")
        warnings.warn_explicit(f"called a synchronizing CUDA operation: {what}", UserWarning, file, int(line))


def place() -> str:
    """The innermost line of the project on the stack, as file:line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if file := file_of_project(frame.f_code.co_filename):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of the project:0"


@cache
def file_of_project(name: str) -> str | None:
    """A file of the project by its path in the project; None of any other file."""
    file = Path(name).resolve()  # harness/strategies is a link
    inside = file.is_relative_to(PROJECT) and file.relative_to(PROJECT).parts[0] in ("harness", "strategies")
    return str(file.relative_to(PROJECT)) if inside else None


class Event:
    """An event of `torch.cuda`, whose own class nobody can derive from. An external one is recorded by every replay."""

    def __init__(self, enable_timing: bool = False, *, external: bool = False) -> None:
        import torch

        self._event, self._external = torch.Event(device="cuda", enable_timing=enable_timing), external

    def record(self) -> None:
        if self._external and loaded().is_capturing():
            loaded().add_node(self._event.record)
        else:
            self._event.record()

    def wait(self, stream: Any) -> None:
        stream.wait_event(self._event)

    def synchronize(self) -> None:
        self._event.synchronize()

    def elapsed_time(self, later: "Event") -> float:
        return float(self._event.elapsed_time(later._event))


class CUDAGraph:
    """Work that is issued once and run by every `replay`; `torch.cuda.graph` is torch's own."""

    def capture_begin(self, *_pool: Any, **_options: Any) -> None:
        self._graph = loaded().begin_capture()

    def capture_end(self) -> None:
        loaded().end_capture()

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        del self._graph


def install() -> None:
    """Makes the devices those of `torch.cuda`, and the messages those of NCCL."""
    import torch

    devices = loaded()
    devices.set_device_count(int(os.environ.get("FAKE_GPUS", "8")))
    devices.set_limit(int(os.environ.get("FAKE_GPU_BYTES", "17179869184")))

    def index(device: Any = None) -> int:
        if device is None:
            return int(devices.current_device())
        number = device if isinstance(device, int) else torch.device(device).index
        return int(devices.current_device()) if number is None else int(number)

    def stream_of(device: int, number: int) -> Any:
        kind = torch._C._autograd.DeviceType.CUDA
        return torch.Stream(stream_id=number, device_index=device, device_type=int(kind))

    def synchronize(_device: Any = None) -> None:
        if devices.is_capturing():
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        devices.synchronize()
        note("synchronize device")

    answers = {
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "is_available": lambda: devices.device_count() > 0,
        "is_initialized": lambda: True,
        "device_count": devices.device_count,
        "current_device": devices.current_device,
        "set_device": lambda device: devices.set_device(index(device)),
        "can_device_access_peer": lambda *_: True,
        "get_device_name": lambda *_: "fake",
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: SimpleNamespace(
            name="fake",
            major=9,
            minor=0,
            total_memory=devices.limit(),
            multi_processor_count=1,
            L2_cache_size=1 << 16,
        ),
        "Stream": lambda device=None: torch.Stream(device=torch.device("cuda", index(device))),
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "stream": lambda stream: nullcontext() if stream is None else stream,
        "current_stream": lambda device=None: stream_of(index(device), devices.current_stream(index(device))),
        "default_stream": lambda device=None: stream_of(index(device), 0),
        "set_sync_debug_mode": lambda mode: setattr(debug, "sync", mode),
        "synchronize": synchronize,
        "is_current_stream_capturing": devices.is_capturing,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: devices.allocated(index(device)),
        "max_memory_allocated": lambda device=None: devices.peak(index(device)),
        "reset_peak_memory_stats": lambda device=None: devices.reset_peak(index(device)),
        "mem_get_info": lambda device=None: (
            devices.limit() - devices.allocated(index(device)),
            devices.limit(),
        ),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch._C._host_emptyCache = lambda: None  # type: ignore[attr-defined]
    torch.version.cuda = os.environ.get("FAKE_CUDA")  # given one, torch warns of what its build lacks
    torch._C._cuda_jiterator_compile_and_launch_kernel = elementwise
    sys.modules["triton"] = None  # type: ignore[assignment]  # its kernels are machine code; importing it is an error
    devices.listen(note)
    import fake_nccl

    fake_nccl.install()
