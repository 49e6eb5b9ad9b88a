"""The layers of G3, a convolution or attention, computed bin by bin. An object is one layer in one epoch.

Legend: N this rank's vertices, K those that it needs of others, B the vertices of a bin, M those of a message, X any
of them; V are N and then K; L are N in the order of the bins; E all edges, bin by bin. F features in, H features out
(of all heads), Q heads; with Q, F are the features of one head. G = dL/dZ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.kernels import Csr, transpose, upload_csr
from harness.kernels.attention import (
    attend,
    attend_columns_backward,
    attend_rows_backward,
    transpose_with_positions,
)
from harness.kernels.parts import hstack
from harness.kernels.recorded import Kernels
from harness.ledger import Op, TensorName
from harness.models.gat import (
    compute_scores,
    compute_scores_backward,
    concatenate_heads,
    merge_heads,
    merge_heads_backward,
    split_heads,
)
from harness.strategies.g3.schedule import Bin, Message, Schedule, rows_between, rows_of_bin
from harness.strategy import Context

Receive = Callable[[], None]
"""Waits for the rows of other ranks that a bin needs."""

MoveMatrix = Callable[[Csr], Csr]
"""Moves a matrix to the host or to the device."""


def choose_matrix_placement(ctx: Context, *, offload: bool) -> tuple[MoveMatrix, MoveMatrix]:
    """Return a function that keeps a bin's matrix, on the host if offloaded, and one that brings it to the device."""
    if offload:
        return ctx.memory.pin_matrix, partial(upload_csr, device=ctx.device)
    return ctx.memory.hold_matrix, lambda A: A


class BinLayer(Protocol):
    """One layer in one epoch: the steps of its forward and backward pass for each bin and each message.

    Steps with two parts first gather the inputs of a bin, matrices that are kept on the host and contiguous rows of
    this rank, and return a function that computes. Inputs may be gathered on another thread, while the previous bin is
    computed.
    """

    number: int
    H_NF: Tensor
    H_KF: Tensor
    """The rows of other ranks, filled message by message; complete from the start in the first layer."""

    # Forward.

    def multiply_own_rows(self, number: int) -> Callable[[], None]:
        """Gather for a bin; the returned function computes what needs no message, before any is waited for."""

    def use_rows(self, slots: range) -> None:
        """Process the rows of H_KF that a message has brought."""

    def compute_output(self, number: int) -> Callable[[Receive], Tensor]:
        """Gather for a bin; the returned function computes Z_BH and calls `receive` before it uses rows of others."""

    # Backward, from the last bin to the first.

    def begin_backward(self, G_NH: Tensor) -> None: ...

    def backward(self, number: int) -> Callable[[], None]:
        """Gather for a bin; the returned function computes the gradients that follow from its output."""

    def message_gradient(self, message: Message) -> Tensor:
        """Return dH_MF of a message, after `backward` of all bins that use its rows."""

    def weight_gradients(self) -> Iterator[Tensor]:
        """Yield this rank's share of the weights' gradients, after `backward` of all bins."""

    def bin_gradient(self, number: int) -> Callable[[], Tensor]:
        """Gather for a bin; the returned function computes dH_BF from this rank's own use of the bin's rows."""


MakeLayer = Callable[[int, Tensor, Tensor, Sequence[Tensor]], BinLayer]
"""Makes a layer from its number, H_NF, H_KF and its weights."""


class StoredRows:
    """T of every bin of a layer, stored from one step of the bin to its next, on the device or on the host."""

    def __init__(self, host_NF: Tensor | None, places: Sequence[slice], device: torch.device) -> None:
        """Create an empty store. `host_NF` is a buffer for all bins, each at its place; None keeps T on the device."""
        self.host_NF, self._places, self._device = host_NF, places, device
        self._kept: dict[int, Tensor] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def put(self, number: int, T_BF: Tensor) -> None:
        """Store T of a bin. A copy to the host is asynchronous; later kernels are ordered after it."""
        if self.host_NF is None:
            self._kept[number] = T_BF
        else:
            self._kept[number] = self.host_NF[self._places[number]].copy_(T_BF, non_blocking=True)

    def get(self, number: int) -> Tensor:
        """Return T of a bin, on the device."""
        T_BF = self._kept[number]
        return T_BF if self.host_NF is None else _copy_async(T_BF, self._device)


def _copy_async(x: Tensor, device: torch.device) -> Tensor:
    """Start an asynchronous copy to the device, and return it."""
    return torch.empty_like(x, device=device, pin_memory=False).copy_(x, non_blocking=True)


# Convolution: Z = A H W, or A H W + H W_root of GraphSAGE; T = A H.
#
# Backward, dW += T^T G and dT = G W^T of one bin after the other; then dH = A^T dT.


class ConvolutionBins(NamedTuple):
    """The matrices of one rank's bins: each bin's rows of A and of A^T, and A_KN, the transpose of A_NK.

    `on_host` has a host buffer for T of each layer; None keeps T on the device.
    """

    kernels: Kernels
    bins: Sequence[Bin]
    A_NN: Sequence[Csr]
    A_T_NN: Sequence[Csr]
    A_NK: Sequence[Csr]
    A_KN: Csr
    places: Sequence[slice]
    """The slice of each bin among all rows in the order of the bins."""
    on_host: Sequence[Tensor | None]
    to_device: MoveMatrix
    """Copies the matrix of a bin to the device."""


def make_convolutions(
    ctx: Context, plan: Schedule, vertices: range, A_NK: Csr, widths: Sequence[int], *, offload: bool
) -> MakeLayer:
    """Prepare the bins' matrices, and return a function that makes layers with inputs of these widths.

    With `offload`, the matrices of bins, and T of bins that wait, are kept on the host.
    """
    keep, to_device = choose_matrix_placement(ctx, offload=offload)

    def in_bins(A: Csr) -> list[Csr]:
        return [keep(rows_of_bin(A, rows)) for rows in plan.bin_list.parts]

    A_NN = A_T_NN = in_bins(ctx.blocks.host_adjacency(vertices, vertices))
    if ctx.facts.directed:
        A_T_NN = in_bins(ctx.blocks.host_adjacency(vertices, vertices, transposed=True))
    A_KN = ctx.memory.hold_matrix(transpose(A_NK))
    on_host = [ctx.memory.allocate_on_host(len(vertices), f_in) if offload else None for f_in in widths]
    places = _consecutive(map(len, plan.bin_list.parts))
    bins = ConvolutionBins(
        ctx.kernels, plan.bins, A_NN, A_T_NN, in_bins(A_NK), A_KN, places, on_host, to_device
    )
    return partial(BinConvolution, bins)


class BinConvolution:
    """T = A H and Z = T W + H W_root, and the gradients."""

    def __init__(
        self, rank: ConvolutionBins, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.rank, self.kernels, self.bins = rank, rank.kernels, rank.bins
        self.number, self.H_NF, self.H_KF = number, H_NF, H_KF
        self.W_FH = weights[0]
        self.root_FH = weights[1] if len(weights) > 1 else None
        self.T = StoredRows(rank.on_host[number], rank.places, H_NF.device)

    def multiply_own_rows(self, number: int) -> Callable[[], None]:
        multiply = self._own_rows(number)

        def compute() -> None:
            self._store(number, multiply())

        return compute

    def _own_rows(self, number: int) -> Callable[[], Tensor]:
        """T = A_BN H_N."""
        A_BN = self.rank.to_device(self.rank.A_NN[number])
        return lambda: self.kernels.spmm(A_BN, self.H_NF, TensorName.T)

    def _store(self, number: int, T_BF: Tensor) -> None:
        """Store T until the next step of the bin."""
        if self.T.host_NF is None:
            self.T.put(number, T_BF)
            return
        with self.kernels.ledger.op(Op.COPY, tensor=TensorName.T):
            self.T.put(number, T_BF)

    def use_rows(self, slots: range) -> None:
        """Do nothing: `compute_output` multiplies the rows of H_K."""

    def compute_output(self, number: int) -> Callable[[Receive], Tensor]:
        """T += A_BK H_K, Z = T W + H W_root."""
        kernels, stored_T_BF = self.kernels, self.T.get(number) if number in self.T else None
        multiply = self._own_rows(number) if stored_T_BF is None else None
        A_BK = self.rank.to_device(self.rank.A_NK[number])
        root = None if self.root_FH is None else (self._rows(number, self.H_NF), self.root_FH)

        def compute(receive: Receive) -> Tensor:
            T_BF = multiply() if multiply else stored_T_BF
            assert T_BF is not None
            receive()
            kernels.spmm(A_BK, self.H_KF, TensorName.T, add_to=T_BF)
            Z_BH = kernels.gemm(T_BF, self.W_FH, TensorName.Z)
            if root:
                kernels.gemm(*root, TensorName.Z, add_to=Z_BH)
            self._store(number, T_BF)
            return Z_BH

        return compute

    def begin_backward(self, G_NH: Tensor) -> None:
        self.G_NH, self.dW_FH = G_NH, self.W_FH.new_zeros(self.W_FH.shape)
        self.dT_NF = self.H_NF.new_empty(self.H_NF.shape if self.number else (len(G_NH), 0))

    def backward(self, number: int) -> Callable[[], None]:
        """dW += T^T G, dT = G W^T."""
        G_BH, T_BF = self._rows(number, self.G_NH), self.T.get(number)

        def compute() -> None:
            self.kernels.gemm(T_BF.T, G_BH, TensorName.DW, add_to=self.dW_FH)
            if self.number:
                dT_BF = self.kernels.gemm(G_BH, self.W_FH.T, TensorName.DT)
                with self.kernels.ledger.op(Op.COPY, tensor=TensorName.DT):
                    self.dT_NF.index_copy_(0, self.bins[number].rows, dT_BF)

        return compute

    def message_gradient(self, message: Message) -> Tensor:
        """dH_M = A_MN dT."""
        A_MN = rows_between(self.rank.A_KN, message.slots, message.entries)
        return self.kernels.spmm(A_MN, self.dT_NF, TensorName.DH)

    def weight_gradients(self) -> Iterator[Tensor]:
        """dW, and dW_root = H^T G."""
        yield self.dW_FH
        if self.root_FH is not None:
            yield self.kernels.gemm(self.H_NF.T, self.G_NH, TensorName.DW)

    def bin_gradient(self, number: int) -> Callable[[], Tensor]:
        """dH = A^T dT + G W_root^T."""
        A_T_BN = self.rank.to_device(self.rank.A_T_NN[number])
        root = None if self.root_FH is None else (self._rows(number, self.G_NH), self.root_FH.T)

        def compute() -> Tensor:
            dH_BF = self.kernels.spmm(A_T_BN, self.dT_NF, TensorName.DH)
            if root:
                self.kernels.gemm(*root, TensorName.DH, add_to=dH_BF)
            return dH_BF

        return compute

    def _rows(self, number: int, X_NF: Tensor) -> Tensor:
        return X_NF.index_select(0, self.bins[number].rows)


# Attention: T = H W of all vertices V, over which each row of a bin takes a softmax (`harness.kernels.attention`).
#
# As in a convolution, ranks send rows of H: each rank that needs a row projects it, and returns one gradient for T and
# the scores together. In the backward pass, bins compute the gradients of their edges; these are then collected at the
# edges' other ends.


class AttentionBins(NamedTuple):
    """The matrices of one rank's bins: each bin's rows of A, with positions in L and in E, and all edges by column."""

    kernels: Kernels
    bins: Sequence[Bin]
    heads: int
    layers: int
    A_BV: Sequence[Csr]
    rows: Sequence[slice]
    edges: Sequence[slice]
    A_VL: Csr
    """The transposed matrix, whose values are positions in E."""
    own: int
    """The number of edges from this rank's vertices; the others follow in A_VL."""
    on_host: Sequence[Tensor | None]
    """A host buffer for the edge weights of each layer, from the forward to the backward pass; or None."""
    to_device: MoveMatrix


def make_attentions(
    ctx: Context, plan: Schedule, vertices: range, A_NK: Csr, widths: Sequence[int], *, offload: bool
) -> MakeLayer:
    """Do what `make_convolutions` does for attention, with edge weights in place of T."""
    keep, to_device = choose_matrix_placement(ctx, offload=offload)
    A_NN, parts = ctx.blocks.host_adjacency(vertices, vertices), plan.bin_list.parts
    A_NV = hstack([A_NN, A_NK])
    A_BV = [keep(rows_of_bin(A_NV, rows)) for rows in parts]
    A_LV = rows_of_bin(A_NV, torch.cat([torch.arange(0), *parts]))
    rows, edges = _consecutive(A.rows for A in A_BV), _consecutive(A.nnz for A in A_BV)
    A_VL, model = ctx.memory.hold_matrix(transpose_with_positions(A_LV)), ctx.spec.model
    entries = edges[-1].stop if edges else 0
    on_host = [ctx.memory.allocate_on_host(model.heads, entries) if offload else None for _ in widths]
    heads, layers = model.heads, model.layers
    bins = AttentionBins(
        ctx.kernels, plan.bins, heads, layers, A_BV, rows, edges, A_VL, A_NN.nnz, on_host, to_device
    )
    return partial(BinAttention, bins)


class BinAttention:
    """T = H W, scores of the edges, Z = the weighted sum of the neighbours' T, and the gradients."""

    def __init__(
        self, rank: AttentionBins, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.rank, self.kernels, self.bins, self.op = rank, rank.kernels, rank.bins, rank.kernels.ledger.op
        self.number, self.H_NF, self.H_KF = number, H_NF, H_KF
        self.W_FH, self.a_2H = weights
        heads, self.mean = rank.heads, number + 1 == rank.layers
        self.own, vertices, features = len(H_NF), len(H_NF) + len(H_KF), self.W_FH.shape[1] // heads
        self.T_QVF = H_NF.new_empty((heads, vertices, features))
        self.s_QV = H_NF.new_empty((heads, vertices))
        self.host_QE = rank.on_host[number]
        shape = heads, rank.edges[-1].stop if self.bins else 0
        self.a_QE = H_NF.new_empty(shape) if self.host_QE is None else self.host_QE
        self._project(range(self.own), H_NF)
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            self.d_QN = compute_scores(self.T_QVF[:, : self.own], self.a_2H[0])
        if not number:
            self.use_rows(range(len(H_KF)))

    def _project(self, at: range, H_XF: Tensor) -> None:
        """Compute T = H W, and the contribution of these rows to the scores of their edges."""
        T_XH = self.kernels.gemm(H_XF, self.W_FH, TensorName.T)
        with self.op(Op.COPY, tensor=TensorName.T):
            T_QXF = split_heads(T_XH, self.rank.heads)
            self.T_QVF[:, at.start : at.stop] = T_QXF
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            self.s_QV[:, at.start : at.stop] = compute_scores(T_QXF, self.a_2H[1])

    def multiply_own_rows(self, number: int) -> Callable[[], None]:
        """Return a function that does nothing: a softmax needs the scores of all neighbours together."""
        return lambda: None

    def use_rows(self, slots: range) -> None:
        self._project(self._places(slots), self.H_KF[slots.start : slots.stop])

    def compute_output(self, number: int) -> Callable[[Receive], Tensor]:
        """a = softmax of the scores, Z = sum of a T over the neighbours."""
        A_BV, d_QB = self._gather(number)

        def compute(receive: Receive) -> Tensor:
            receive()
            with self.op(Op.SPMM, tensor=TensorName.Z):
                a_QB, Z_QBF = attend(A_BV, d_QB, self.s_QV, self.T_QVF)
            with self.op(Op.COPY, tensor=TensorName.Z):
                for a_E, a_B in zip(self.a_QE, a_QB, strict=True):
                    a_E[self.rank.edges[number]].copy_(a_B, non_blocking=True)
                return merge_heads(Z_QBF, mean=self.mean)

        return compute

    def begin_backward(self, G_NH: Tensor) -> None:
        self.G_NH = G_NH
        if self.host_QE is not None:
            with self.op(Op.COPY, tensor=TensorName.SCORES):
                self.a_QE = _copy_async(self.host_QE, G_NH.device)
        self.G_QLF = torch.empty_like(self.T_QVF[:, : self.own])
        self.dl_QE, self.dd_QN = torch.empty_like(self.a_QE), torch.empty_like(self.d_QN)
        self.dW_FH, self.da_2H = torch.zeros_like(self.W_FH), torch.zeros_like(self.a_2H)

    def backward(self, number: int) -> Callable[[], None]:
        """dl of the edges of a bin, and dd, their sums by row."""
        G_BH = self.G_NH.index_select(0, self.bins[number].rows)
        (A_BV, d_QB), G_QBF = (
            self._gather(number),
            merge_heads_backward(G_BH, self.rank.heads, mean=self.mean),
        )
        rows, edges = self.bins[number].rows, self.rank.edges[number]

        def compute() -> None:
            with self.op(Op.COPY, tensor=TensorName.G):
                self.G_QLF[:, self.rank.rows[number]] = G_QBF
            with self.op(Op.SPMM, tensor=TensorName.SCORES):
                a_QB = self.a_QE[:, edges]
                dl_QB, dd_QB = attend_rows_backward(A_BV, d_QB, self.s_QV, self.T_QVF, a_QB, G_QBF)
            with self.op(Op.COPY, tensor=TensorName.SCORES):
                self.dl_QE[:, edges] = dl_QB
                self.dd_QN.index_copy_(1, rows, dd_QB)

        return compute

    def message_gradient(self, message: Message) -> Tensor:
        """dH = dT W^T."""
        return self._grad_of_H(self._grad_of_others(message.slots, message.entries))

    def weight_gradients(self) -> Iterator[Tensor]:
        """Yield dW and da. In the first layer no message returns, so the rows of others are added here."""
        own, A_VL = range(self.own), self.rank.A_VL
        dT_QNF = self._collect(own, range(self.rank.own))
        self._add_scores(dT_QNF, 0, self.dd_QN, own)
        self.dT_NH = self._add_to_dW(dT_QNF, self.H_NF)
        if not self.number:
            self._grad_of_others(range(len(self.H_KF)), range(A_VL.nnz - self.rank.own))
        del (
            self.a_QE,
            self.dl_QE,
            self.G_QLF,
        )  # the largest tensors; the layer itself lives until the pass ends
        yield self.dW_FH
        yield self.da_2H

    def bin_gradient(self, number: int) -> Callable[[], Tensor]:
        """dH = dT W^T."""
        dT_BH = self.dT_NH.index_select(0, self.bins[number].rows)
        return lambda: self._grad_of_H(dT_BH)

    def _gather(self, number: int) -> tuple[Csr, Tensor]:
        A_BV = self.rank.to_device(self.rank.A_BV[number])
        return A_BV, self.d_QN.index_select(1, self.bins[number].rows)

    def _grad_of_H(self, dT_XH: Tensor) -> Tensor:
        return self.kernels.gemm(dT_XH, self.W_FH.T, TensorName.DH)

    def _grad_of_others(self, slots: range, entries: range) -> Tensor:
        """Return dT of rows of other ranks, and add it to dW."""
        after_own = range(self.rank.own + entries.start, self.rank.own + entries.stop)
        dT_QMF = self._collect(self._places(slots), after_own)
        return self._add_to_dW(dT_QMF, self.H_KF[slots.start : slots.stop])

    def _collect(self, at: range, entries: range) -> Tensor:
        """Return dT of some rows, from the edges of all bins that use them."""
        A_XL = rows_between(self.rank.A_VL, at, entries)
        with self.op(Op.SPMM, tensor=TensorName.DT):
            dT_QXF, ds_QX = attend_columns_backward(A_XL, self.a_QE, self.dl_QE, self.G_QLF)
        self._add_scores(dT_QXF, 1, ds_QX, at)
        return dT_QXF

    def _add_scores(self, dT_QXF: Tensor, end: int, of_scores_QX: Tensor, at: range) -> None:
        """Add the gradient of the scores, at one end of the edges, to dT and da."""
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            dT, da = compute_scores_backward(of_scores_QX, self.T_QVF[:, at.start : at.stop], self.a_2H[end])
            dT_QXF += dT
            self.da_2H[end] += da

    def _add_to_dW(self, dT_QXF: Tensor, H_XF: Tensor) -> Tensor:
        """Add H^T dT to dW, and return dT with concatenated heads."""
        with self.op(Op.COPY, tensor=TensorName.DT):
            dT_XH = concatenate_heads(dT_QXF)
        self.kernels.gemm(H_XF.T, dT_XH, TensorName.DW, add_to=self.dW_FH)
        return dT_XH

    def _places(self, slots: range) -> range:
        """Return the positions in V of rows of K."""
        return range(self.own + slots.start, self.own + slots.stop)


def _consecutive(lengths: Iterable[int]) -> list[slice]:
    """Return consecutive slices of these lengths."""
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
