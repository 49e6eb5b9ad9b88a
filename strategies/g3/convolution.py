"""A convolution bin by bin: Z = A H W, or A H W + H W_root of GraphSAGE.

Back, dW += T^T G and dT = G W^T of one bin after the other, then dH = A^T dT. Legend as in `pipeline`; T = A H.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from harness.kernels import Csr, transpose
from harness.ledger import Op, TensorName
from harness.strategy import Context
from strategies.g3.layer import Here
from strategies.g3.schedule import Message, Schedule, rows_between, rows_of


class Matrices(NamedTuple):
    """Rows of every bin; and the transpose of A_NK, which is on the device."""

    A_NN: Sequence[Csr]
    A_T_NN: Sequence[Csr]
    A_NK: Sequence[Csr]
    A_KN: Csr


class Convolution:
    """A layer."""

    def __init__(
        self, here: Here, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.number, self.H_NF, self.H_KF = number, H_NF, H_KF
        self.W_FH, self.root_FH = weights if len(weights) > 1 else (*weights, None)
        self.kernels, self.bins, self.matrices = here.kernels, here.plan.bins, here.matrices
        self.brought = here.brought
        self.T: dict[int, Tensor] = {}

    @staticmethod
    def hold(
        ctx: Context, plan: Schedule, vertices: range, A_NK: Csr, keep: Callable[[Csr], Csr]
    ) -> Matrices:
        def in_bins(A: Csr) -> list[Csr]:
            return [keep(rows_of(A, rows)) for rows in plan.listed.parts]

        A_NN = A_T_NN = in_bins(ctx.blocks.host_block(vertices, vertices))
        if ctx.facts.directed:
            A_T_NN = in_bins(ctx.blocks.host_block(vertices, vertices, transposed=True))
        return Matrices(A_NN, A_T_NN, in_bins(A_NK), ctx.memory.hold_matrix(transpose(A_NK)))

    def arrived(self, slots: range) -> None:
        """They are multiplied as they are."""

    def stage_begin(self, number: int) -> Csr:
        return self.brought(self.matrices.A_NN[number])

    def begin(self, number: int, at_hand: Csr) -> None:
        self.T[number] = self.kernels.spmm(at_hand, self.H_NF, TensorName.T)

    def stage_output(self, number: int) -> tuple[Csr | None, Csr, Tensor | None]:
        A_BN = None if number in self.T else self.stage_begin(number)
        return A_BN, self.brought(self.matrices.A_NK[number]), self._of_root(number, self.H_NF)

    def output(
        self, number: int, at_hand: tuple[Csr | None, Csr, Tensor | None], land: Callable[[], None]
    ) -> Tensor:
        """T = A H, Z = T W + H W_root."""
        kernels, (A_BN, A_BK, H_BF) = self.kernels, at_hand
        if A_BN is not None:
            self.begin(number, A_BN)
        land()
        T_BF = self.T[number]
        kernels.spmm(A_BK, self.H_KF, TensorName.T, add_to=T_BF)
        Z_BH = kernels.gemm(T_BF, self.W_FH, TensorName.Z)
        if self.root_FH is not None:
            kernels.gemm(H_BF, self.root_FH, TensorName.Z, add_to=Z_BH)
        return Z_BH

    def turn(self, G_NH: Tensor) -> None:
        self.G_NH, self.dW_FH = G_NH, self.W_FH.new_zeros(self.W_FH.shape)
        self.dT_NF = self.H_NF.new_empty(self.H_NF.shape if self.number else (len(G_NH), 0))

    def stage_from_output(self, number: int) -> Tensor:
        return self._rows(number, self.G_NH)

    def from_output(self, number: int, at_hand: Tensor) -> None:
        """dW += T^T G, dT = G W^T."""
        G_BH = at_hand
        self.kernels.gemm(self.T[number].T, G_BH, TensorName.DW, add_to=self.dW_FH)
        if self.number:
            dT_BF = self.kernels.gemm(G_BH, self.W_FH.T, TensorName.DT)
            with self.kernels.ledger.op(Op.COPY, tensor=TensorName.DT):
                self.dT_NF.index_copy_(0, self.bins[number].rows, dT_BF)

    def of_message(self, message: Message) -> Tensor:
        """dH = A^T dT."""
        A_MN = rows_between(self.matrices.A_KN, message.slots, message.entries)
        return self.kernels.spmm(A_MN, self.dT_NF, TensorName.DH)

    def gradients(self) -> Iterator[Tensor]:
        yield self.dW_FH
        if self.root_FH is not None:
            yield self.kernels.gemm(self.H_NF.T, self.G_NH, TensorName.DW)

    def stage_of_bin(self, number: int) -> tuple[Csr, Tensor | None]:
        return self.brought(self.matrices.A_T_NN[number]), self._of_root(number, self.G_NH)

    def of_bin(self, number: int, at_hand: tuple[Csr, Tensor | None]) -> Tensor:
        """dH = A^T dT + G W_root^T."""
        A_T_BN, G_BH = at_hand
        dH_BF = self.kernels.spmm(A_T_BN, self.dT_NF, TensorName.DH)
        if self.root_FH is not None:
            self.kernels.gemm(G_BH, self.root_FH.T, TensorName.DH, add_to=dH_BF)
        return dH_BF

    def _of_root(self, number: int, X_NF: Tensor) -> Tensor | None:
        """Rows that go past the aggregation."""
        return None if self.root_FH is None else self._rows(number, X_NF)

    def _rows(self, number: int, X_NF: Tensor) -> Tensor:
        """Those of a bin."""
        return X_NF.index_select(0, self.bins[number].rows)
