"""The tensors that one rank holds from one step to the next, and their bytes by tensor."""

from collections import defaultdict

import torch
from torch import Tensor

from harness.device import is_gpu, upload
from harness.kernels import Csr
from harness.kernels.spmm import ChooseKernel, cache_for_products
from harness.ledger import TensorName


class DeviceMemory:
    """One rank's memory on its device, in the precision of the run. `persistent_bytes` adds up all that is held."""

    def __init__(self, device: torch.device, dtype: torch.dtype, choose: ChooseKernel | None = None) -> None:
        """`choose` chooses among the ways to multiply by a matrix that is held."""
        self.device, self.dtype, self._choose = device, dtype, choose
        self._held: list[tuple[TensorName, Tensor]] = []
        self._on_host: list[Tensor] = []

    def hold(self, name: TensorName, tensor: Tensor) -> Tensor:
        """Holds a tensor from now on, on the device and in its own type."""
        self._held.append((name, tensor.to(self.device)))
        return self._held[-1][1]

    def hold_matrix(self, A: Csr, name: TensorName = TensorName.A) -> Csr:
        """Holds a matrix from now on."""
        A = self._rounded(A)
        return cache_for_products(
            Csr(self.hold(name, A.rowptr), self.hold(name, A.col), self.hold(name, A.val), A.cols),
            self._choose,
        )

    def release(self, tensor: Tensor) -> None:
        """Holds a tensor no longer."""
        self._held = [(name, held) for name, held in self._held if held is not tensor]

    def buffer(self, name: TensorName, *shape: int) -> Tensor:
        """Holds zeros, for values that stay from one step to the next."""
        return self.hold(name, self.zeros(*shape))

    def zeros(self, *shape: int) -> Tensor:
        """Returns zeros that are not held."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def to_device(self, A: Csr) -> Csr:
        """Returns the matrix of one step, which is not held; the host does not wait until it is there."""
        A = self._rounded(A)
        if A.val.is_meta:
            return A
        rowptr, col, val = (upload(x, self.device) for x in (A.rowptr, A.col, A.val))
        return Csr(rowptr, col, val, A.cols)

    def kept_on_host(self, A: Csr) -> Csr:
        """Returns a matrix that takes no memory of a GPU: pinned, so that a GPU can copy from it."""
        A = self._rounded(A)
        if not is_gpu(self.device):
            return A
        return Csr(A.rowptr.pin_memory(), A.col.pin_memory(), A.val.pin_memory(), A.cols)

    def buffer_on_host(self, *shape: int) -> Tensor:
        """Returns memory for values that wait outside of a GPU: pinned, so that a GPU can copy to and from it."""
        if self.device.type == "meta":
            self._on_host.append(torch.empty(shape, dtype=self.dtype, device=self.device))
            return self._on_host[-1]
        return torch.empty(shape, dtype=self.dtype, pin_memory=is_gpu(self.device))

    def on_host(self, A: Csr) -> Csr:
        """Returns a matrix that stays on the host; of shapes, which are on no device, keeps that in mind."""
        if A.val.is_meta:
            self._on_host += [A.rowptr, A.col, A.val]
        return A

    def shapes_on_host(self) -> list[Tensor]:
        """The shapes that stay on the host: those that were never held."""
        held = {tensor.untyped_storage()._cdata for _, tensor in self._held}
        return [shape for shape in self._on_host if shape.untyped_storage()._cdata not in held]

    def persistent_bytes(self) -> dict[TensorName, int]:
        """The bytes held by tensor; each piece of memory counts once."""
        total: dict[TensorName, int] = defaultdict(int)
        seen = set()
        for name, tensor in self._held:
            memory = tensor.untyped_storage()._cdata  # unlike its address, shapes without memory have one too
            if memory not in seen:
                seen.add(memory)
                total[name] += tensor.nbytes
        return dict(total)

    def _rounded(self, A: Csr) -> Csr:
        """A in the precision of the run; values that are whole numbers keep their type."""
        return A._replace(val=A.val.to(self.dtype)) if A.val.is_floating_point() else A
