"""Runs a rank of CAGNET's own programs (github.com/PASSIONLab/CAGNET) on a CPU, over gloo, and counts what it sends.

    python cagnet_worker.py FOLDER SCRIPT OPTIONS...

The script is unchanged. It sees a `torch` whose GPU is the host: tensors for a GPU are on the CPU, NCCL is gloo, and
calls are counted by the function that makes them. FOLDER has the graph (`graph.npz`), which is the program's Cora; each
rank writes `rank-N.json` there. `peak` are the most bytes of live tensors that the program moved to its GPU, or made
there.
"""

import ast
import json
import os
import sys
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch_geometric.datasets
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

GPU = torch.device("cpu")
"""The device of the program's GPU; the host's is another object."""


class Counter:
    """The epochs of a rank, and the elements of its collectives, by function, op and kind of tensor."""

    def __init__(self) -> None:
        self.epochs = 0
        self.elements: dict[str, int] = defaultdict(int)

    def add(self, op: str, tensor: Tensor, times: int = 1) -> None:
        """Count a call of the program."""
        frame = sys._getframe(2)
        # The sparse blocks travel as three rows: row numbers, column numbers and values; and their lengths before.
        kind = "A" if tensor.dtype == torch.int64 or (tensor.dim() == 2 and len(tensor) == 3) else "dense"
        self.elements[f"{frame.f_code.co_name} {op} {kind}"] += times * tensor.numel()


class Live(TorchDispatchMode):
    """The bytes of live storages that operations on the device make, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = 0
        self._known = set[int]()

    def forget(self) -> None:
        """Count from here on."""
        self.bytes = self.peak = 0
        self._known = set()

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor until it is freed."""
        for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
            storage = part.untyped_storage()
            if storage._cdata in self._known:
                continue
            self._known.add(storage._cdata)
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.bytes)

    def _free(self, number: int, size: int) -> None:
        if number in self._known:
            self._known.discard(number)
            self.bytes -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self.add(each)
        return result


class Gloo(types.ModuleType):
    """torch.distributed over gloo, whose calls are counted."""

    def __init__(self, counter: Counter) -> None:
        super().__init__("torch.distributed")
        self.counter, self.reduce_op = counter, dist.ReduceOp

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def init_process_group(self, backend: str) -> None:
        dist.init_process_group("gloo")

    def broadcast(self, tensor: Tensor, src: int, group: Any = None) -> None:
        self.counter.add("broadcast", tensor)
        dist.broadcast(tensor, src, group)

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        self.counter.add("all_reduce", tensor)
        dist.all_reduce(tensor, op, group)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor, group: Any = None) -> None:
        self.counter.add("all_gather", tensor, len(tensors))
        dist.all_gather(tensors, tensor.contiguous(), group)


class TorchWithGpu(types.ModuleType):
    """torch, where the host is the GPU."""

    def __init__(self, counter: Counter, live: Live) -> None:
        super().__init__("torch")
        self.distributed, self._live = Gloo(counter), live
        self.cuda = types.SimpleNamespace(
            FloatTensor=self._make(torch.float32),
            LongTensor=self._make(torch.int64),
            synchronize=lambda **_: None,
            set_device=lambda _: None,
            current_device=lambda: 0,
            device_count=lambda: 1,
            memory_allocated=lambda *_: live.bytes,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, name: str) -> torch.device:
        """Return the device of the program's GPU, or of the host."""
        return GPU if name.startswith("cuda") else torch.device(name)

    def _make(self, dtype: torch.dtype) -> Callable[..., Tensor]:
        def make(*sizes: Any, **_: Any) -> Tensor:
            if len(sizes) == 1 and isinstance(sizes[0], list):
                made = torch.tensor(sizes[0], dtype=dtype)
            else:
                made = torch.empty(*(sizes or (0,)), dtype=dtype)
            self._live.add(made)
            return made

        return make


def multiply(rows: Tensor, columns: Tensor, values: Tensor, n: int, m: int, B: Tensor, C: Tensor) -> None:
    """Add the product of a sparse matrix and B to C."""
    A = torch.sparse_coo_tensor(torch.stack([rows, columns]).long(), values, (n, m))
    C += torch.sparse.mm(A, B)


def multiply_sparse(
    a: Tensor, a_values: Tensor, b: Tensor, b_values: Tensor, n: int, k: int, m: int
) -> tuple[Tensor, Tensor]:
    """Return the indices and the values of a product of sparse matrices."""
    A, B = (
        torch.sparse_coo_tensor(indices, values, size)
        for indices, values, size in ((a, a_values, (n, k)), (b, b_values, (k, m)))
    )
    C = torch.sparse.mm(A, B).coalesce()
    return C.indices(), C.values()


class Cora:
    """The graph of the folder, as the program's smallest dataset."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "graph.npz") as arrays:
            self._data = Data(
                x=torch.from_numpy(arrays["X"]),
                y=torch.from_numpy(arrays["y"]),
                edge_index=torch.from_numpy(arrays["edges"]),
                **{f"{name}_mask": torch.from_numpy(arrays[name]) for name in ("train", "val", "test")},
            )
        self.num_features, self.num_classes = self._data.x.shape[1], int(self._data.y.max()) + 1

    def __getitem__(self, number: int) -> Data:
        return self._data


def make_module(name: str, **parts: Any) -> types.ModuleType:
    """Return a module with these parts."""
    module = types.ModuleType(name)
    vars(module).update(parts)
    return module


@contextmanager
def replaced_modules(folder: Path, counter: Counter, live: Live) -> Iterator[None]:
    """Let the program import modules that run on the host."""
    proxy = TorchWithGpu(counter, live)
    datasets = make_module(
        "torch_geometric.datasets", Planetoid=lambda *_, **__: Cora(folder), PPI=torch_geometric.datasets.PPI
    )
    modules = {
        "torch": proxy,
        "torch.distributed": proxy.distributed,
        "torch_geometric.datasets": datasets,
        "reddit": make_module("reddit", Reddit=None),
        "torch_scatter": make_module("torch_scatter", scatter_add=None),
        "torch_sparse": make_module("torch_sparse", spspmm=multiply_sparse),
        "sparse_coo_tensor_cpp": make_module(
            "sparse_coo_tensor_cpp", sparse_coo_tensor_gpu=torch.sparse_coo_tensor, spmm_gpu=multiply
        ),
    }
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def count_moves(live: Live) -> None:
    """Count what is moved to the GPU."""
    move = Tensor.to

    def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        moved: Tensor = move(self, *args, **options)
        if args and args[0] is GPU:
            if moved.layout is torch.strided and moved.untyped_storage().nbytes() > moved.nbytes:
                moved = moved.clone()  # a part of a tensor of the host
            live.add(moved)
        return moved

    Tensor.to = to  # type: ignore[method-assign, assignment]


def main(folder: Path, script: Path, options: list[str]) -> None:
    """Run a script as this rank, and write its counts."""
    counter, live = Counter(), Live()
    count_moves(live)
    body = ast.parse(script.read_text(), str(script))
    *definitions, program = body.body  # the last statement is `if __name__ == "__main__":`
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    with replaced_modules(folder, counter, live):
        exec(compile(ast.Module(definitions, []), str(script), "exec"), names)
    sys.argv = [str(script), *options]
    run, train = names["run"], names["train"]

    def run_with_blocks(*args: Any) -> Any:
        live.forget()  # only its blocks are on the GPU, as of the graphs that the program reads block by block
        return run(*args)

    def train_on_gpu(*args: Any) -> Any:
        counter.epochs += 1
        with live:
            return train(*args)

    names |= {"run": run_with_blocks, "train": train_on_gpu}
    exec(compile(ast.Module([program], []), str(script), "exec"), names)
    rank = os.environ["RANK"]
    (folder / f"rank-{rank}.json").write_text(json.dumps({**vars(counter), "peak": live.peak}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
