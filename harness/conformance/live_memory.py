"""Finds the tensors that a rank keeps after its set-up without counting them in its memory (`harness.strategy.memory`).

All Python objects are searched, including objects of libraries. What the harness owns is left out: the grid, the states
of the optimizer, one flag of the trainer, and what products on a GPU keep for each matrix: row pointers and a schedule,
about 8 bytes a row. Gradients do not exist yet after a set-up.
"""

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import META
from harness.kernels.spmm import list_cached_tensors
from harness.ledger import Ledger
from harness.runtime.trainer import Trainer
from harness.strategy import Strategy

Array: TypeAlias = "Tensor | np.ndarray[Any, Any]"

CONTAINERS = Tensor, np.ndarray, dict, list, tuple, set, deque
NOT_ENTERED = ModuleType, type, str, bytes, int, float, Ledger

PATIENCE = 1.0
"""The seconds in which a communication library frees the buffers of calls that are complete."""
PAUSE = 0.01


class UncountedTensor(NamedTuple):
    """A tensor or an array of NumPy that a rank keeps without counting it, or counts only in part."""

    owner: str
    """The attribute that keeps it, from the operators, the strategy, the context or a module."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    """The bytes of its storage that are not counted."""


class SetUpMemory:
    """The memory that a strategy keeps already, and that comes to life from the creation of this object on."""

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self._device = device
        self._modules = {each.__module__ for each in type(strategy).__mro__}
        own = {key for _, array in _walk({"": strategy}) for key, _ in _list_storages(array)}
        arrays = self._list_arrays()
        self._before = [each for each in arrays if own.isdisjoint(key for key, _ in _list_storages(each))]
        """Kept, so that no new tensor takes the place of an old one."""

    def find_uncounted(self, trainer: Trainer) -> list[UncountedTensor]:
        """Return the new tensors on the device that live outside the trainer's memory, the largest first.

        The collector runs only if some are found, which may be garbage.
        """
        if not self._find_uncounted(trainer):
            return []
        deadline = time.monotonic() + PATIENCE
        while True:
            gc.collect()
            found = self._find_uncounted(trainer)
            if all(each.owner != NO_OWNER for each in found) or time.monotonic() > deadline:
                return found
            time.sleep(PAUSE)

    def _find_uncounted(self, trainer: Trainer) -> list[UncountedTensor]:
        counted = dict[int, int]()
        for tensor in trainer.ctx.memory.list_tensors():  # of tensors that share storage the first is counted
            for key, _ in _list_storages(tensor):
                counted.setdefault(key, tensor.nbytes)
        own = [trainer.ctx.grid, trainer.optimizer, trainer.output_is_finite, list_cached_tensors()]
        known = {key for _, array in _walk({"": own}) for key, _ in _list_storages(array)}
        known |= {key for array in self._before for key, _ in _list_storages(array)}
        owners = dict[int, str]()
        for path, array in _walk(self._list_roots(trainer)):
            owners |= {key: path for key, _ in _list_storages(array) if key not in owners}
        found = dict[int, UncountedTensor]()
        for array in (arrays := self._list_arrays()):
            for key, size in _list_storages(array):
                left = size - counted.get(key, 0)
                if left > 0 and key not in known and key not in found:
                    owner = owners.get(key) or _describe_referrers(array, arrays)
                    dtype = str(array.dtype).removeprefix("torch.")
                    found[key] = UncountedTensor(owner, tuple(array.shape), dtype, left)
        return sorted(found.values(), key=lambda each: -each.bytes)

    def _list_roots(self, trainer: Trainer) -> dict[str, object]:
        """Return where to look for the owner of a tensor, by name."""
        named = {"operators": trainer.operators, "strategy": trainer.strategy, "ctx": trainer.ctx}
        return {**named, "trainer": trainer, **self._list_variables()}

    def _list_variables(self) -> dict[str, object]:
        """Return the global variables of the strategy's modules that hold values: containers and own objects."""
        return {
            f"{module}.{name}": value
            for module in self._modules
            for name, value in vars(sys.modules[module]).items()
            if issubclass(type(value), CONTAINERS) or type(value).__module__ == module
        }

    def _list_arrays(self) -> list[Array]:
        """Return the tensors and arrays on the device. The collector knows every tensor, but no array of NumPy."""
        objects = gc.get_objects()
        found: list[Array] = [array for _, array in _walk(self._list_variables())]
        found += [each for each in objects if issubclass(type(each), Tensor)]
        found += [each for each in gc.get_referents(*objects) if type(each) is np.ndarray]
        return [array for array in found if self._is_on_device(array)]

    def _is_on_device(self, array: Array) -> bool:
        kind = array.device.type if isinstance(array, Tensor) else "cpu"
        return kind == self._device.type


def _list_storages(array: Array) -> list[tuple[int, int]]:
    """Return the address and the bytes of the memory behind a tensor or an array; empty memory is left out.

    A view leads to the memory of its base, of which an array of NumPy may have none: a mapped file, or a tensor's.
    A tensor with which torch's compiler traced a function names a device, but its storage has no memory.
    """
    if isinstance(array, Tensor):
        storages = [each.untyped_storage() for each in _list_parts(array)]
        return [
            (each.data_ptr(), each.nbytes()) for each in storages if each.device != META and each.nbytes()
        ]
    while isinstance(array.base, np.ndarray):
        array = array.base
    return [(array.ctypes.data, array.nbytes)] if array.base is None and array.nbytes else []


PARTS: dict[torch.layout, Callable[[Tensor], list[Tensor]]] = {
    torch.strided: lambda x: [x],
    torch.sparse_csr: lambda x: [x.crow_indices(), x.col_indices(), x.values()],
    torch.sparse_coo: lambda x: [x._indices(), x._values()],
}
"""The dense tensors that tensors of a layout consist of."""


def _list_parts(x: Tensor) -> list[Tensor]:
    return PARTS[x.layout](x) if x.layout in PARTS else []


def _walk(roots: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the tensors and arrays that named objects lead to, each with its shortest path.

    Types are compared by `issubclass`, because `isinstance` may run code of an object's class.
    """
    seen, waiting = set[int](), deque(roots.items())
    while waiting:
        path, each = waiting.popleft()
        if id(each) in seen or issubclass(type(each), NOT_ENTERED):
            continue
        seen.add(id(each))
        if issubclass(type(each), Tensor | np.ndarray):
            yield path, each
        else:
            waiting += _name_parts(path, each)


def _name_parts(path: str, each: Any) -> Iterable[tuple[str, Any]]:
    """Return the objects to which an object refers, each with its path."""
    kind = type(each)
    if issubclass(kind, dict):
        return [(f"{path}[{key!r}]", value) for key, value in list(each.items())]
    if issubclass(kind, tuple) and len(fields := getattr(each, "_fields", ())) == len(each):
        return [(f"{path}.{name}", value) for name, value in zip(fields, each, strict=True)]
    if issubclass(kind, list | tuple):
        return [(f"{path}[{number}]", value) for number, value in enumerate(each)]
    if issubclass(kind, FunctionType):  # its globals are not its own
        return [(path, value) for value in (*(each.__closure__ or ()), *(each.__defaults__ or ()))]
    attributes = _get_attributes(each)
    named = [(f"{path}.{name}", value) for name, value in list(attributes.items())]
    return [*named, *((path, value) for value in gc.get_referents(each) if value is not attributes)]


def _get_attributes(each: object) -> dict[str, object]:
    """Return the attributes of an object, without running code of its class."""
    try:
        attributes = object.__getattribute__(each, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


NO_OWNER = "no Python object"
"""The owner of a tensor in a call that a communication library has not ended yet."""


def _describe_referrers(array: Array, arrays: list[Array]) -> str:
    """Describe what keeps an array that no root leads to, other than the list `arrays`."""
    kinds = {type(each).__name__ for each in gc.get_referrers(array) if each is not arrays}
    return f"an object of type {' or '.join(sorted(kinds))}" if kinds else NO_OWNER
