"""The tensors that one rank holds between steps, and their bytes by tensor."""

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from harness.base.device import is_gpu, upload
from harness.kernels import Csr
from harness.kernels.spmm import ChooseKernel, cache_for_products
from harness.ledger import TensorName


class HeldTensor(NamedTuple):
    """A tensor that a rank holds: under which name, and how large."""

    name: TensorName
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class DeviceMemory:
    """One rank's tensors on its device, in the precision of the run. `persistent_bytes` returns their sizes."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        choose: ChooseKernel | None = None,
        *,
        has_own_memory: bool = False,
    ) -> None:
        """Create an empty memory.

        `choose` selects the kernel that multiplies by a held matrix. `has_own_memory` is True for a GPU, also in a
        replay: what stays on its host takes none of its memory.
        """
        self.device, self.dtype, self._choose = device, dtype, choose
        self._has_own_memory = has_own_memory
        self._held: list[tuple[TensorName, Tensor]] = []
        self._on_host: list[Tensor] = []

    def hold(self, name: TensorName, tensor: Tensor) -> Tensor:
        """Move a tensor to the device, keep it until `release`, and return it. Its type is unchanged."""
        self._held.append((name, tensor.to(self.device)))
        return self._held[-1][1]

    def hold_matrix(self, A: Csr, name: TensorName = TensorName.A) -> Csr:
        """Move a matrix to the device, in the precision of the run, and keep it."""
        A = self._cast_values(A)
        return cache_for_products(
            Csr(self.hold(name, A.rowptr), self.hold(name, A.col), self.hold(name, A.val), A.cols),
            self._choose,
        )

    def release(self, tensor: Tensor) -> None:
        """Stop holding a tensor."""
        self._held = [(name, held) for name, held in self._held if held is not tensor]

    def hold_on_host(self, name: TensorName, tensor: Tensor) -> Tensor:
        """Keep a tensor on the host until `release`, and return it. It is counted unless the device is a GPU."""
        if not self._has_own_memory:
            self.hold(name, tensor)
        return tensor

    def hold_zeros(self, name: TensorName, *shape: int) -> Tensor:
        """Hold a tensor of zeros, for values that persist between steps."""
        return self.hold(name, self.zeros(*shape))

    def zeros(self, *shape: int) -> Tensor:
        """Return a tensor of zeros that is not held."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def to_device(self, A: Csr) -> Csr:
        """Copy a matrix of one step to the device without holding it. The copy is asynchronous."""
        A = self._cast_values(A)
        if A.val.is_meta:
            return A
        rowptr, col, val = (upload(x, self.device) for x in (A.rowptr, A.col, A.val))
        return Csr(rowptr, col, val, A.cols)

    def pin_matrix(self, A: Csr) -> Csr:
        """Keep a matrix on the host, in pinned memory if the device is a GPU."""
        A = self._cast_values(A)
        if not is_gpu(self.device):
            return A
        return Csr(A.rowptr.pin_memory(), A.col.pin_memory(), A.val.pin_memory(), A.cols)

    def allocate_on_host(self, *shape: int) -> Tensor:
        """Allocate host memory for values offloaded from the device, pinned if the device is a GPU."""
        if self.device.type == "meta":
            self._on_host.append(torch.empty(shape, dtype=self.dtype, device=self.device))
            return self._on_host[-1]
        return torch.empty(shape, dtype=self.dtype, pin_memory=is_gpu(self.device))

    def keep_on_host(self, A: Csr) -> Csr:
        """Return a matrix that stays on the host. In a replay, record that its meta tensors represent host tensors."""
        if A.val.is_meta:
            self._on_host += [A.rowptr, A.col, A.val]
        return A

    def host_shapes(self) -> list[Tensor]:
        """Return the meta tensors that represent host tensors, because they were never held."""
        held = {tensor.untyped_storage()._cdata for _, tensor in self._held}
        return [shape for shape in self._on_host if shape.untyped_storage()._cdata not in held]

    def list_tensors(self) -> list[Tensor]:
        """Return the tensors held, in the order in which they were."""
        return [tensor for _, tensor in self._held]

    def persistent_bytes(self) -> dict[TensorName, int]:
        """Return the bytes held, by name. Storage that tensors share counts once."""
        total: dict[TensorName, int] = defaultdict(int)
        for tensor in self.list_held():
            total[tensor.name] += tensor.bytes
        return dict(total)

    def list_held(self) -> list[HeldTensor]:
        """Return the tensors held, in the order in which they were. Of tensors that share storage only the first."""
        distinct: dict[int, HeldTensor] = {}
        for name, x in self._held:
            memory = x.untyped_storage()._cdata  # meta tensors have no data pointer
            if memory not in distinct:
                dtype = str(x.dtype).removeprefix("torch.")
                distinct[memory] = HeldTensor(name, tuple(x.shape), dtype, x.nbytes)
        return list(distinct.values())

    def _cast_values(self, A: Csr) -> Csr:
        """Cast floating-point values to the precision of the run; integer values keep their type."""
        return A._replace(val=A.val.to(self.dtype)) if A.val.is_floating_point() else A
