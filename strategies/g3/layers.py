"""The layers of G3, a convolution or attention, computed bin by bin. An object is one layer in one epoch.

Legend: N this rank's vertices, K the vertices of others that it needs, B the vertices of a bin, M of a message, X any;
V are N and then K; L are N in the order of the bins; E all edges, bin by bin. F features in, H features out (of all
heads), Q heads; with Q, F are the features of one head. G = dL/dZ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

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
from harness.strategies.g3.schedule import Bin, Message, Schedule, SetUp, select_bin_rows, slice_rows
from harness.strategy import Context
from harness.strategy.models.gat import (
    compute_scores,
    compute_scores_backward,
    concatenate_heads,
    merge_heads,
    merge_heads_backward,
    split_heads,
)

Receive = Callable[[], None]
"""Waits for the rows of other ranks that a bin needs."""

MoveMatrix = Callable[[Csr], Csr]
"""Moves a matrix to the host or to the device."""

Inputs = Any
"""What a step of one kind of layer reads: its `gather_...` method returns it, and the step takes it."""


def choose_matrix_placement(ctx: Context, *, offload: bool) -> tuple[MoveMatrix, MoveMatrix]:
    """Return a function that stores a bin's matrix, on the host if offloaded, and one that moves it to the device."""
    if offload:
        return ctx.memory.pin_matrix, partial(upload_csr, device=ctx.device)
    return ctx.memory.hold_matrix, lambda A: A


class BinLayer(Protocol):
    """One layer in one epoch: the steps of its forward and backward pass for each bin and each message.

    A step of a bin has two methods. The first gathers the inputs: it moves matrices to the device, and selects the
    bin's rows of this rank's tensors. It may run on another thread, while the previous bin is computed. The second
    method computes.
    """

    number: int
    H_NF: Tensor
    H_KF: Tensor
    """The rows of other ranks, filled message by message; complete from the start in the first layer."""

    # Forward.

    def gather_for_own_rows(self, bin_number: int) -> Inputs: ...

    def multiply_own_rows(self, bin_number: int, inputs: Inputs) -> None:
        """Compute what depends only on this rank's rows, before any message is waited for."""

    def use_rows(self, slots: range) -> None:
        """Process the rows of H_KF that a message has brought."""

    def gather_for_output(self, bin_number: int) -> Inputs: ...

    def compute_output(self, bin_number: int, inputs: Inputs, receive: Receive) -> Tensor:
        """Return Z_BH. Calls `receive` before it uses rows of other ranks."""

    # Backward, from the last bin to the first.

    def begin_backward(self, G_NH: Tensor) -> None: ...

    def gather_for_backward(self, bin_number: int) -> Inputs: ...

    def backward(self, bin_number: int, inputs: Inputs) -> None:
        """Compute the gradients that follow from the bin's output."""

    def compute_message_gradient(self, message: Message) -> Tensor:
        """Return dH_MF of a message, after `backward` of all bins that use its rows."""

    def weight_gradients(self) -> Iterator[Tensor]:
        """Yield this rank's share of the weights' gradients, after `backward` of all bins."""

    def gather_for_gradient(self, bin_number: int) -> Inputs: ...

    def compute_gradient(self, bin_number: int, inputs: Inputs) -> Tensor:
        """Return dH_BF from this rank's own use of the bin's rows."""


MakeLayer = Callable[[int, Tensor, Tensor, Sequence[Tensor]], BinLayer]
"""Makes a layer from its number, H_NF, H_KF and its weights."""


class StoredRows:
    """T of every bin of a layer, stored from one step of the bin to its next, on the device or on the host."""

    def __init__(self, host_NF: Tensor | None, bin_slices: Sequence[slice], device: torch.device) -> None:
        """Create an empty store. `host_NF` is a buffer divided among the bins; None keeps T on the device."""
        self.host_NF, self._bin_slices, self._device = host_NF, bin_slices, device
        self._stored: dict[int, Tensor] = {}

    def __contains__(self, bin_number: int) -> bool:
        return bin_number in self._stored

    def put(self, bin_number: int, T_BF: Tensor) -> None:
        """Store T of a bin. A copy to the host is asynchronous; later kernels are ordered after it."""
        if self.host_NF is None:
            self._stored[bin_number] = T_BF
        else:
            host_BF = self.host_NF[self._bin_slices[bin_number]]
            self._stored[bin_number] = host_BF.copy_(T_BF, non_blocking=True)

    def get(self, bin_number: int) -> Tensor:
        """Return T of a bin, on the device."""
        T_BF = self._stored[bin_number]
        return T_BF if self.host_NF is None else _copy_async(T_BF, self._device)


def _copy_async(x: Tensor, device: torch.device) -> Tensor:
    """Start an asynchronous copy to the device, and return it."""
    return torch.empty_like(x, device=device, pin_memory=False).copy_(x, non_blocking=True)


# Convolution: Z = A H W, or A H W + H W_root of GraphSAGE; T = A H.
#
# Backward, dW += T^T G and dT = G W^T of one bin after the other; then dH = A^T dT.


class ConvolutionBins(NamedTuple):
    """What the convolutions of a rank share: each bin's rows of A and of A^T, and A_KN, the transpose of A_NK."""

    kernels: Kernels
    bins: Sequence[Bin]
    A_NN: Sequence[Csr]
    A_T_NN: Sequence[Csr]
    A_NK: Sequence[Csr]
    A_KN: Csr
    bin_slices: Sequence[slice]
    """The slice of each bin among all rows in the order of the bins."""
    host_buffers: Sequence[Tensor | None]
    """A host buffer for T of each layer; None stores T on the device."""
    to_device: MoveMatrix
    """Moves the matrix of a bin to the device."""


def make_convolutions(
    ctx: Context, plan: Schedule, set_up: SetUp, widths: Sequence[int], *, offload: bool
) -> MakeLayer:
    """Prepare the bins' matrices, and return a function that makes layers with inputs of these widths.

    With `offload`, the host stores the matrices of bins, and T of bins that wait.
    """
    store_matrix, to_device = choose_matrix_placement(ctx, offload=offload)
    vertices, parts, A_NK = set_up

    def split_into_bins(A: Csr) -> list[Csr]:
        return [store_matrix(select_bin_rows(A, rows)) for rows in parts]

    A_NN = A_T_NN = split_into_bins(ctx.blocks.host_adjacency(vertices, vertices))
    if ctx.facts.directed:
        A_T_NN = split_into_bins(ctx.blocks.host_adjacency(vertices, vertices, transposed=True))
    A_KN = ctx.memory.hold_matrix(transpose(A_NK))
    host_buffers = [ctx.memory.allocate_on_host(len(vertices), f_in) if offload else None for f_in in widths]
    shared = ConvolutionBins(
        kernels=ctx.kernels,
        bins=plan.bins,
        A_NN=A_NN,
        A_T_NN=A_T_NN,
        A_NK=split_into_bins(A_NK),
        A_KN=A_KN,
        bin_slices=_consecutive_slices(map(len, parts)),
        host_buffers=host_buffers,
        to_device=to_device,
    )
    return partial(BinConvolution, shared)


class BinConvolution:
    """T = A H and Z = T W + H W_root, and the gradients."""

    def __init__(
        self, shared: ConvolutionBins, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.shared, self.kernels, self.bins = shared, shared.kernels, shared.bins
        self.number, self.H_NF, self.H_KF = number, H_NF, H_KF
        self.W_FH = weights[0]
        self.root_FH = weights[1] if len(weights) > 1 else None
        self.T = StoredRows(shared.host_buffers[number], shared.bin_slices, H_NF.device)

    def gather_for_own_rows(self, bin_number: int) -> Csr:
        """Return A_BN."""
        return self.shared.to_device(self.shared.A_NN[bin_number])

    def multiply_own_rows(self, bin_number: int, A_BN: Csr) -> None:
        """T = A_BN H_N."""
        self._store(bin_number, self.kernels.spmm(A_BN, self.H_NF, TensorName.T))

    def _store(self, bin_number: int, T_BF: Tensor) -> None:
        """Store T until the next step of the bin."""
        if self.T.host_NF is None:
            self.T.put(bin_number, T_BF)
            return
        with self.kernels.ledger.op(Op.COPY, tensor=TensorName.T):
            self.T.put(bin_number, T_BF)

    def use_rows(self, slots: range) -> None:
        """Do nothing: `compute_output` multiplies the rows of H_K."""

    def gather_for_output(self, bin_number: int) -> Inputs:
        """Return T, or A_BN if T is still to be computed; A_BK; and with a root term, H_B."""
        T_BF = self.T.get(bin_number) if bin_number in self.T else None
        A_BN = self.gather_for_own_rows(bin_number) if T_BF is None else None
        A_BK = self.shared.to_device(self.shared.A_NK[bin_number])
        H_BF = None if self.root_FH is None else self._select_bin(bin_number, self.H_NF)
        return T_BF, A_BN, A_BK, H_BF

    def compute_output(self, bin_number: int, inputs: Inputs, receive: Receive) -> Tensor:
        """T += A_BK H_K, Z = T W + H W_root."""
        T_BF, A_BN, A_BK, H_BF = inputs
        if T_BF is None:
            T_BF = self.kernels.spmm(A_BN, self.H_NF, TensorName.T)
        receive()
        self.kernels.spmm(A_BK, self.H_KF, TensorName.T, add_to=T_BF)
        Z_BH = self.kernels.gemm(T_BF, self.W_FH, TensorName.Z)
        if self.root_FH is not None:
            self.kernels.gemm(H_BF, self.root_FH, TensorName.Z, add_to=Z_BH)
        self._store(bin_number, T_BF)
        return Z_BH

    def begin_backward(self, G_NH: Tensor) -> None:
        self.G_NH, self.dW_FH = G_NH, self.W_FH.new_zeros(self.W_FH.shape)
        self.dT_NF = self.H_NF.new_empty(self.H_NF.shape if self.number else (len(G_NH), 0))

    def gather_for_backward(self, bin_number: int) -> tuple[Tensor, Tensor]:
        """Return G_B and T_B."""
        return self._select_bin(bin_number, self.G_NH), self.T.get(bin_number)

    def backward(self, bin_number: int, inputs: tuple[Tensor, Tensor]) -> None:
        """dW += T^T G, dT = G W^T."""
        G_BH, T_BF = inputs
        self.kernels.gemm(T_BF.T, G_BH, TensorName.DW, add_to=self.dW_FH)
        if self.number:
            dT_BF = self.kernels.gemm(G_BH, self.W_FH.T, TensorName.DT)
            with self.kernels.ledger.op(Op.COPY, tensor=TensorName.DT):
                self.dT_NF.index_copy_(0, self.bins[bin_number].rows, dT_BF)

    def compute_message_gradient(self, message: Message) -> Tensor:
        """dH_M = A_MN dT."""
        A_MN = slice_rows(self.shared.A_KN, message.slots, message.entries)
        return self.kernels.spmm(A_MN, self.dT_NF, TensorName.DH)

    def weight_gradients(self) -> Iterator[Tensor]:
        """Yield dW, and with a root term, dW_root = H^T G."""
        yield self.dW_FH
        if self.root_FH is not None:
            yield self.kernels.gemm(self.H_NF.T, self.G_NH, TensorName.DW)

    def gather_for_gradient(self, bin_number: int) -> tuple[Csr, Tensor | None]:
        """Return the bin's rows of A^T, and with a root term, G_B."""
        A_T_BN = self.shared.to_device(self.shared.A_T_NN[bin_number])
        return A_T_BN, None if self.root_FH is None else self._select_bin(bin_number, self.G_NH)

    def compute_gradient(self, bin_number: int, inputs: Inputs) -> Tensor:
        """dH = A^T dT + G W_root^T."""
        A_T_BN, G_BH = inputs
        dH_BF = self.kernels.spmm(A_T_BN, self.dT_NF, TensorName.DH)
        if self.root_FH is not None:
            self.kernels.gemm(G_BH, self.root_FH.T, TensorName.DH, add_to=dH_BF)
        return dH_BF

    def _select_bin(self, bin_number: int, X_NF: Tensor) -> Tensor:
        return X_NF.index_select(0, self.bins[bin_number].rows)


# Attention: T = H W of all vertices V, over which each row of a bin takes a softmax (`harness.kernels.attention`).
#
# As in a convolution, ranks send rows of H: each rank that needs a row projects it, and returns one gradient for T and
# the scores together. In the backward pass, bins compute the gradients of their edges; these are then collected at the
# edges' other ends.


class AttentionBins(NamedTuple):
    """What the attention layers of a rank share: each bin's rows of A, and all edges by column."""

    kernels: Kernels
    bins: Sequence[Bin]
    heads: int
    layers: int
    A_BV: Sequence[Csr]
    bin_slices: Sequence[slice]
    """The slice of each bin in L."""
    edge_slices: Sequence[slice]
    """The slice of each bin's edges in E."""
    A_VL: Csr
    """The transposed matrix, whose values are positions in E."""
    own_edges: int
    """The number of edges from this rank's vertices; the others follow in A_VL."""
    host_buffers: Sequence[Tensor | None]
    """A host buffer for the edge weights of each layer, from the forward to the backward pass; or None."""
    to_device: MoveMatrix


def make_attentions(
    ctx: Context, plan: Schedule, set_up: SetUp, widths: Sequence[int], *, offload: bool
) -> MakeLayer:
    """Do what `make_convolutions` does for attention, with edge weights in place of T."""
    store_matrix, to_device = choose_matrix_placement(ctx, offload=offload)
    vertices, parts, A_NK = set_up
    A_NN = ctx.blocks.host_adjacency(vertices, vertices)
    A_NV = hstack([A_NN, A_NK])
    A_BV = [store_matrix(select_bin_rows(A_NV, rows)) for rows in parts]
    A_LV = select_bin_rows(A_NV, torch.cat([torch.arange(0), *parts]))
    edge_slices = _consecutive_slices(A.nnz for A in A_BV)
    A_VL, model = ctx.memory.hold_matrix(transpose_with_positions(A_LV)), ctx.spec.model
    edges = edge_slices[-1].stop if edge_slices else 0
    shared = AttentionBins(
        kernels=ctx.kernels,
        bins=plan.bins,
        heads=model.heads,
        layers=model.layers,
        A_BV=A_BV,
        bin_slices=_consecutive_slices(A.rows for A in A_BV),
        edge_slices=edge_slices,
        A_VL=A_VL,
        own_edges=A_NN.nnz,
        host_buffers=[ctx.memory.allocate_on_host(model.heads, edges) if offload else None for _ in widths],
        to_device=to_device,
    )
    return partial(BinAttention, shared)


class BinAttention:
    """T = H W, scores of the edges, Z = the weighted sum of the neighbours' T, and the gradients."""

    def __init__(
        self, shared: AttentionBins, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.shared, self.kernels, self.bins = shared, shared.kernels, shared.bins
        self.op = self.kernels.ledger.op
        self.number, self.H_NF, self.H_KF = number, H_NF, H_KF
        self.W_FH, self.a_2H = weights
        heads, self.mean = shared.heads, number + 1 == shared.layers
        self.own_vertices = len(H_NF)
        vertices, features = len(H_NF) + len(H_KF), self.W_FH.shape[1] // heads
        self.T_QVF = H_NF.new_empty((heads, vertices, features))
        self.s_QV = H_NF.new_empty((heads, vertices))
        self.host_QE = shared.host_buffers[number]
        shape = heads, shared.edge_slices[-1].stop if self.bins else 0
        self.a_QE = H_NF.new_empty(shape) if self.host_QE is None else self.host_QE
        self._project(range(self.own_vertices), H_NF)
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            self.d_QN = compute_scores(self.T_QVF[:, : self.own_vertices], self.a_2H[0])
        if not number:
            self.use_rows(range(len(H_KF)))

    def _project(self, at: range, H_XF: Tensor) -> None:
        """Compute T = H W, and the contribution of these rows to the scores of their edges."""
        T_XH = self.kernels.gemm(H_XF, self.W_FH, TensorName.T)
        with self.op(Op.COPY, tensor=TensorName.T):
            T_QXF = split_heads(T_XH, self.shared.heads)
            self.T_QVF[:, at.start : at.stop] = T_QXF
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            self.s_QV[:, at.start : at.stop] = compute_scores(T_QXF, self.a_2H[1])

    def gather_for_own_rows(self, bin_number: int) -> None:
        """Return None: `multiply_own_rows` has no inputs."""

    def multiply_own_rows(self, bin_number: int, inputs: None) -> None:
        """Do nothing: a softmax needs the scores of all neighbours together."""

    def use_rows(self, slots: range) -> None:
        self._project(self._positions(slots), self.H_KF[slots.start : slots.stop])

    def gather_for_output(self, bin_number: int) -> tuple[Csr, Tensor]:
        """Return A_BV, and the contribution d_B of the bin's rows to the scores."""
        A_BV = self.shared.to_device(self.shared.A_BV[bin_number])
        return A_BV, self.d_QN.index_select(1, self.bins[bin_number].rows)

    def compute_output(self, bin_number: int, inputs: tuple[Csr, Tensor], receive: Receive) -> Tensor:
        """a = softmax of the scores, Z = sum of a T over the neighbours."""
        A_BV, d_QB = inputs
        receive()
        with self.op(Op.SPMM, tensor=TensorName.Z):
            a_QB, Z_QBF = attend(A_BV, d_QB, self.s_QV, self.T_QVF)
        with self.op(Op.COPY, tensor=TensorName.Z):
            for a_E, a_B in zip(self.a_QE, a_QB, strict=True):
                a_E[self.shared.edge_slices[bin_number]].copy_(a_B, non_blocking=True)
            return merge_heads(Z_QBF, mean=self.mean)

    def begin_backward(self, G_NH: Tensor) -> None:
        self.G_NH = G_NH
        if self.host_QE is not None:
            with self.op(Op.COPY, tensor=TensorName.SCORES):
                self.a_QE = _copy_async(self.host_QE, G_NH.device)
        self.G_QLF = torch.empty_like(self.T_QVF[:, : self.own_vertices])
        self.dl_QE, self.dd_QN = torch.empty_like(self.a_QE), torch.empty_like(self.d_QN)
        self.dW_FH, self.da_2H = torch.zeros_like(self.W_FH), torch.zeros_like(self.a_2H)

    def gather_for_backward(self, bin_number: int) -> tuple[Csr, Tensor, Tensor]:
        """Return A_BV, d_B, and G_B split into heads."""
        G_BH = self.G_NH.index_select(0, self.bins[bin_number].rows)
        A_BV, d_QB = self.gather_for_output(bin_number)
        return A_BV, d_QB, merge_heads_backward(G_BH, self.shared.heads, mean=self.mean)

    def backward(self, bin_number: int, inputs: tuple[Csr, Tensor, Tensor]) -> None:
        """dl of the edges of a bin, and dd, their sums by row."""
        A_BV, d_QB, G_QBF = inputs
        rows, edges = self.bins[bin_number].rows, self.shared.edge_slices[bin_number]
        with self.op(Op.COPY, tensor=TensorName.G):
            self.G_QLF[:, self.shared.bin_slices[bin_number]] = G_QBF
        with self.op(Op.SPMM, tensor=TensorName.SCORES):
            a_QB = self.a_QE[:, edges]
            dl_QB, dd_QB = attend_rows_backward(A_BV, d_QB, self.s_QV, self.T_QVF, a_QB, G_QBF)
        with self.op(Op.COPY, tensor=TensorName.SCORES):
            self.dl_QE[:, edges] = dl_QB
            self.dd_QN.index_copy_(1, rows, dd_QB)

    def compute_message_gradient(self, message: Message) -> Tensor:
        """dH = dT W^T."""
        return self._compute_dH(self._collect_dT_of_others(message.slots, message.entries))

    def weight_gradients(self) -> Iterator[Tensor]:
        """Yield dW and da. In the first layer no message returns, so the rows of others are added here."""
        own, A_VL = range(self.own_vertices), self.shared.A_VL
        dT_QNF = self._collect_dT(own, range(self.shared.own_edges))
        self._add_score_gradients(dT_QNF, 0, self.dd_QN, own)
        self.dT_NH = self._add_to_dW(dT_QNF, self.H_NF)
        if not self.number:
            self._collect_dT_of_others(range(len(self.H_KF)), range(A_VL.nnz - self.shared.own_edges))
        # Free the largest tensors: the layer itself lives until the pass ends.
        del self.a_QE, self.dl_QE, self.G_QLF
        yield self.dW_FH
        yield self.da_2H

    def gather_for_gradient(self, bin_number: int) -> Tensor:
        """Return dT_B."""
        return self.dT_NH.index_select(0, self.bins[bin_number].rows)

    def compute_gradient(self, bin_number: int, dT_BH: Tensor) -> Tensor:
        """dH = dT W^T."""
        return self._compute_dH(dT_BH)

    def _compute_dH(self, dT_XH: Tensor) -> Tensor:
        return self.kernels.gemm(dT_XH, self.W_FH.T, TensorName.DH)

    def _collect_dT_of_others(self, slots: range, entries: range) -> Tensor:
        """Return dT of rows of other ranks, and add it to dW."""
        after_own = range(self.shared.own_edges + entries.start, self.shared.own_edges + entries.stop)
        dT_QMF = self._collect_dT(self._positions(slots), after_own)
        return self._add_to_dW(dT_QMF, self.H_KF[slots.start : slots.stop])

    def _collect_dT(self, at: range, entries: range) -> Tensor:
        """Return dT of some rows, from the edges of all bins that use them."""
        A_XL = slice_rows(self.shared.A_VL, at, entries)
        with self.op(Op.SPMM, tensor=TensorName.DT):
            dT_QXF, ds_QX = attend_columns_backward(A_XL, self.a_QE, self.dl_QE, self.G_QLF)
        self._add_score_gradients(dT_QXF, 1, ds_QX, at)
        return dT_QXF

    def _add_score_gradients(self, dT_QXF: Tensor, end: int, dscores_QX: Tensor, at: range) -> None:
        """Add to dT and da what follows from the gradient of the scores at one end of the edges, 0 or 1."""
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            dT, da = compute_scores_backward(dscores_QX, self.T_QVF[:, at.start : at.stop], self.a_2H[end])
            dT_QXF += dT
            self.da_2H[end] += da

    def _add_to_dW(self, dT_QXF: Tensor, H_XF: Tensor) -> Tensor:
        """Add H^T dT to dW, and return dT with concatenated heads."""
        with self.op(Op.COPY, tensor=TensorName.DT):
            dT_XH = concatenate_heads(dT_QXF)
        self.kernels.gemm(H_XF.T, dT_XH, TensorName.DW, add_to=self.dW_FH)
        return dT_XH

    def _positions(self, slots: range) -> range:
        """Return the positions in V of rows of K."""
        return range(self.own_vertices + slots.start, self.own_vertices + slots.stop)


def _consecutive_slices(lengths: Iterable[int]) -> list[slice]:
    """Return consecutive slices of these lengths."""
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
