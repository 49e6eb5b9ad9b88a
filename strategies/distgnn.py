"""DistGNN: full-graph training on a vertex cut, with partial aggregates that may be delayed (Md et al., SC 2021).

Every edge belongs to one rank, and a vertex has a copy on each rank that has one of its edges; one copy is the master.
A copy has the vertex's row of H and computes everything that follows from it; only A H needs other ranks. With A_p the
edges of rank p, T = A H is the sum over the copies of their partial aggregates A_p H:

    cd-0   `delay` 0      Copies send their partial aggregates to the master, which adds them in the order of the ranks
                          and sends the sum back.
    cd-r   `delay` r      The split vertices are divided into r bins, and epoch e sends bin e mod r. What is sent in
                          epoch e is used from epoch e + r on: a master adds the aggregates that its copies sent last to
                          its own; a copy adds the sum of all others, which the master sent last, to its own.
    0c     `aggregates`   "none": Every copy uses only its own partial aggregate.

The sum over copies is its own transpose: in cd-0, gradients of T are summed in the same way. In cd-r a copy uses only
its own gradient, unless `gradients` are delayed too, and in 0c always. The last layer's sums stay with the masters,
because only they have a loss. Evaluation always uses cd-0.

Legend: N the vertices whose masters are here, K those with a copy here and a master elsewhere, V first N, then K; M the
vertices of N with copies elsewhere, once for each copy; F features in, H features out.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd import Function

from harness.comm.axis import apply_pair
from harness.comm.call import CompletedCall, Pending
from harness.kernels import Csr, transpose
from harness.kernels.csr import from_coo, row_indices, take
from harness.kernels.parts import build_scatter_matrix
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.strategy import (
    LONG,
    WORD,
    Context,
    Coordinates,
    Counts,
    DenseGraph,
    MessageParams,
    Multiply,
    Promise,
    Recurrence,
    Words,
    csr_bytes,
    require_entries,
)
from harness.strategy.parallel.halo import Halo
from harness.strategy.parallel.row_strategy import (
    RowOperators,
    RowStrategy,
    dense_bytes,
    reduce_all_gradients,
    to_index_tensor,
)

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class RankShare(NamedTuple):
    """One rank's share of the vertex cut."""

    entries: Tensor
    """For every entry of A, row by row, whether this rank has it."""
    M: list[Tensor]
    """The vertices M, by the rank of the copy."""
    K: list[Tensor]
    """The vertices K, by the rank of the master."""


class ShareSizes(NamedTuple):
    """The sizes of a share, for formulas."""

    entries: int
    in_cut: bool
    """Whether the store has a vertex cut, which puts both entries of an undirected edge on one rank."""
    M: list[int]
    """The rows of M in each bin; a single bin without a delay."""
    K: list[int]


def find_share(A: Csr, edge_parts: Tensor | None, blocks: Sequence[range], own: int) -> RankShare:
    """Return the share of a rank. Without a cut in the store, parity puts an entry on the rank of its row or column."""
    require_entries(A, "distgnn", "its copies depend on every edge", "choose another strategy")
    row, col = row_indices(A), A.col.long()
    owner = torch.repeat_interleave(torch.arange(len(blocks)), torch.tensor(list(map(len, blocks))))
    parts = torch.where((row + col) % 2 == 0, owner[row], owner[col]) if edge_parts is None else edge_parts
    rows, entries = blocks[own], parts == own
    M, K = ([torch.empty(0, dtype=torch.int64)] * len(blocks) for _ in range(2))
    copies = torch.zeros(A.rows, dtype=torch.bool)
    copies[row[entries]] = copies[col[entries]] = True
    copied = torch.zeros(len(blocks), len(rows), dtype=torch.bool)
    for vertex in (row, col):
        mine = owner[vertex] == own
        copied[parts[mine].long(), vertex[mine] - rows.start] = True
    for q, block in enumerate(blocks):
        if q != own:
            M[q] = copied[q].nonzero()[:, 0] + rows.start
            K[q] = copies[block.start : block.stop].nonzero()[:, 0] + block.start
    return RankShare(entries, M, K)


class DelayBin(NamedTuple):
    """The split vertices that are sent in an epoch: their positions in M and in K, and how many go to each rank."""

    of_masters: Tensor
    of_copies: Tensor
    send: list[int]
    receive: list[int]


class DelayedSums(NamedTuple):
    """The sums received from other copies for one direction and layer, and the messages in flight, by bin."""

    partials: Tensor
    others: Tensor
    in_flight: dict[int, list[Pending[Tensor]]]


class CopiedRows(RowOperators):
    """One rank's operators, on the rows of all its copies."""

    def __init__(self, ctx: Context, strategy: "DistGnn") -> None:
        blocks, own, everyone = strategy.blocks(), ctx.at[P], range(ctx.facts.vertices)
        A, hold = ctx.blocks.host_adjacency(everyone, everyone), partial(ctx.memory.hold, TensorName.INDEX)
        edge_parts = ctx.blocks.edge_parts(everyone)
        mine, M, K = share = find_share(A, edge_parts, blocks, own)
        sizes = strategy.record_sizes(own, share, in_cut=edge_parts is not None)
        super().__init__(ctx, strategy, over=(P,), others=torch.cat(K))
        self.strategy, self.masters = strategy, len(self.rows)
        self.delayed: dict[tuple[Direction, int], DelayedSums] = {}
        V = torch.cat([to_index_tensor(self.rows, torch.device("cpu")), *K])
        position = torch.empty(A.rows).long()
        position[V] = torch.arange(len(V))
        row, col = position[row_indices(A)[mine]], position[A.col.long()[mine]]
        A_VV = from_coo(row, col, A.val[mine], (len(V), len(V)))
        self.A_VV = self.A_T_VV = ctx.memory.hold_matrix(A_VV)
        if strategy.holds_transpose(sizes):
            self.A_T_VV = ctx.memory.hold_matrix(transpose(A_VV))
        leaving, self.V = torch.cat(M) - self.rows.start, hold(V)
        self.S_NM = ctx.memory.hold_matrix(
            build_scatter_matrix(leaving, self.masters, ctx.dtype), TensorName.INDEX
        )
        self.halo = Halo(hold(leaving), list(map(len, M)), list(map(len, K)))
        self.bins = [self.build_bin(M, K, number, hold) for number in range(strategy.delay)]
        for direction, layer, width in strategy.reductions() if self.bins else ():
            buffer = partial(ctx.memory.hold_zeros, strategy.reduced_tensor(direction, layer))
            self.delayed[direction, layer] = DelayedSums(
                buffer(len(leaving), width), buffer(len(V) - self.masters, width), {}
            )

    def build_bin(
        self, M: list[Tensor], K: list[Tensor], number: int, hold: Callable[[Tensor], Tensor]
    ) -> DelayBin:
        in_M, in_K = ([self.strategy.in_bin(each, number) for each in lists] for lists in (M, K))
        of_masters, of_copies = (hold(torch.cat(each).nonzero()[:, 0]) for each in (in_M, in_K))
        send, receive = ([int(each.sum()) for each in lists] for lists in (in_M, in_K))
        return DelayBin(of_masters, of_copies, send, receive)

    def rows_of(self, layer: int) -> Tensor:
        return super().rows_of(layer) if self.strategy.is_last(layer) else self.V

    def aggregate(self, layer: int, H_VF: Tensor, makes: TensorName) -> Tensor:
        """Return the sum over copies of A_p H."""
        return self.sum_over_copies(layer, self.kernels.aggregate(self.A_VV, self.A_T_VV, H_VF, makes))

    def sum_over_copies(self, layer: int, T_VF: Tensor) -> Tensor:
        """Return the sums of the partial aggregates at all copies; in the last layer, at the masters."""
        forward_map = partial(self.reduce_copies, layer, FORWARD)
        backward_map = partial(self.reduce_copies, layer, BACKWARD)
        return apply_pair(self.ledger, T_VF, forward_map, backward_map)

    def reduce_copies(self, layer: int, direction: Direction, x_VF: Tensor) -> Tensor:
        """Return the sums of x over copies, in one direction; `up` is to the masters, `down` from them."""
        up, down = self.strategy.message_directions(layer, direction)
        tensor = self.strategy.reduced_tensor(direction, layer)
        with self.ledger.op(Op.COPY, tensor=tensor):
            sum_NF = x_VF[: self.masters].clone()
            x_KF = x_VF[self.masters :] if up else x_VF.new_zeros(len(self.V) - self.masters, x_VF.shape[1])
        if self.step is None or not (self.bins or self.strategy.is_local_only):
            sum_KF = self.reduce_now(x_KF, sum_NF, up=up, down=down, tensor=tensor)
        elif delayed := self.delayed.get((direction, layer)):
            sum_KF = self.reduce_delayed(x_KF, sum_NF, up=up, down=down, delayed=delayed, tensor=tensor)
        else:
            sum_KF = x_KF
        with self.ledger.op(Op.COPY, tensor=tensor):
            return torch.cat([sum_NF, sum_KF]) if down else sum_NF

    def reduce_now(self, x_KF: Tensor, sum_NF: Tensor, *, up: bool, down: bool, tensor: TensorName) -> Tensor:
        """Add the copies' `x_KF` to the masters' `sum_NF` in place, and return the sums at the copies (cd-0)."""
        if up:
            exchange = self.halo.exchange_gradients(self.over, x_KF, tensor)
            self.kernels.spmm(self.S_NM, exchange.now(), tensor, add_to=sum_NF)
        return self.halo.exchange(self.over, self.kernels, sum_NF, tensor).now() if down else x_KF

    def reduce_delayed(
        self, x_KF: Tensor, sum_NF: Tensor, *, up: bool, down: bool, delayed: DelayedSums, tensor: TensorName
    ) -> Tensor:
        """Do the same with what was sent r epochs ago, and send what will be used in r epochs (cd-r).

        1. Wait for the messages of this epoch's bin, and store the sums that they bring.
        2. Add the stored partial aggregates of the copies to the masters'.
        3. Send the bin's partial aggregates to the masters, and the sums of all others to the copies.
        4. Return the copies' partial aggregates plus the stored sums of all others.
        """
        assert self.step is not None
        number = self.step % len(self.bins)
        of_masters, of_copies, send, receive = self.bins[number]
        stored = (delayed.partials, of_masters), (delayed.others, of_copies)
        for pending, (sums, places) in zip(delayed.in_flight.pop(number, ()), stored, strict=False):
            arrived = pending.wait()
            with self.ledger.op(Op.COPY, tensor=tensor):
                sums[places] = arrived
        self.kernels.spmm(self.S_NM, delayed.partials, tensor, add_to=sum_NF)
        with self.ledger.op(Op.COPY, tensor=tensor):
            to_masters = take(x_KF, of_copies)
            to_copies = take(take(sum_NF, self.halo.send_rows) - delayed.partials, of_masters)
        start = partial(self.over.all_to_all.later, tensor=tensor)
        partials: Pending[Tensor]
        others: Pending[Tensor]
        if up:
            partials = start(to_masters, send=receive, receive=send)
        else:
            partials = CompletedCall(take(delayed.partials, of_masters))
        if down:
            others = start(to_copies, send=send, receive=receive)
        else:
            others = CompletedCall(take(delayed.others, of_copies))
        delayed.in_flight[number] = [partials, others]
        with self.ledger.op(Op.COPY, tensor=tensor):
            return x_KF + delayed.others

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Sum the gradients over all ranks; each rank has computed them for its own copies."""
        reduce_all_gradients(weights, self.over, [weight.layer for weight in self.strategy.weights])


class DelayedCopies(Recurrence):
    """Each rank has rows of its copies (P, n, F), and multiplies by its own entries of A; masters have the output."""

    def __init__(self, strategy: "DistGnn", graph: DenseGraph) -> None:
        super().__init__(strategy, graph)
        vertex, owner = torch.arange(len(self.A)), self.own[..., 0].int().argmax(dim=0)
        parts = graph.parts
        if parts is None:
            parts = torch.where((vertex[:, None] + vertex) % 2 == 0, owner[:, None], owner)
        entries = torch.stack([graph.entries & (parts == p) for p in range(self.ranks)])
        self.A_p = self.A * entries
        self.copies = (entries.any(dim=1) | entries.any(dim=2))[..., None] | self.own
        self.masters = owner, vertex
        self.states = dict[tuple[Direction, int], dict[Any, Tensor]]()

    @staticmethod
    def count_epochs(strategy: "DistGnn") -> int:
        """Every bin is sent three times, and used twice."""
        return 3 * max(strategy.delay, 1)

    def start(self, X: Tensor) -> Tensor:
        return X * self.copies

    def convolve(self, step: int, layer: int, H: Tensor, W: Tensor, multiply: Multiply) -> Tensor:
        is_combined = self.strategy.combines_first(layer)
        T = self.A_p @ (H @ W if is_combined else H)
        if self.params.aggregates == "sum":
            T = DelayedSum.apply(T, self, step, layer)  # type: ignore[no-untyped-call]
        return T if is_combined else T @ W

    def sum_copies(self, step: int, key: tuple[Direction, int], x: Tensor) -> Tensor:
        """Return each copy's sum of x over all copies: its own x, and of the others what has arrived."""
        state, is_copy, delay = self.states.setdefault(key, {}), self.copies & ~self.own, self.strategy.delay
        partials, rest = (state.setdefault(name, torch.zeros_like(x)) for name in ("partials", "rest"))
        in_bin = (torch.arange(len(self.A)) % delay == step % delay)[:, None]
        if step >= delay:
            partials[:] = torch.where(is_copy & in_bin, state.pop(("up", step - delay)), partials)
            rest[:] = torch.where(is_copy & in_bin, state.pop(("down", step - delay)), rest)
        total = x[self.masters] + partials.sum(dim=0)
        state["up", step], state["down", step] = x.clone(), total - partials
        return torch.where(self.own, total, torch.where(is_copy, x + rest, 0))

    def finish(self, Z: Tensor) -> Tensor:
        return Z[self.masters]


class DelayedSum(Function):
    """The sum over copies of cd-r. Gradients are each copy's own, or summed with the same delay."""

    @staticmethod
    def forward(saved: Any, x: Tensor, ops: DelayedCopies, step: int, layer: int) -> Tensor:
        saved.ops, saved.at = ops, (step, layer)
        return ops.sum_copies(step, (FORWARD, layer), x)

    @staticmethod
    def backward(saved: Any, dT: Tensor) -> tuple[Tensor, None, None, None]:
        ops, (step, layer) = saved.ops, saved.at
        is_own = ops.params.gradients == "own"
        return dT if is_own else ops.sum_copies(step, (BACKWARD, layer), dT), None, None, None


class DistGnn(RowStrategy):
    """Training on a vertex cut, for any number of ranks up to the number of vertices."""

    name = "distgnn"
    paper = "DistGNN (SC 2021)"
    promise = Promise.EXACT
    stale_order_reason = (
        "late sums (delay above 0) are sums of A H, as in the paper, and sums of A (H W) would also depend on "
        "old weights"
    )
    has_model_parts = True
    models = ("gcn", "sage")

    class Params(MessageParams):
        """The choice of the algorithm: cd-0, cd-r or 0c."""

        delay: int = Field(0, ge=0, examples=[1, 3])
        """The number r of epochs after which a partial aggregate is used, and of bins; 0 is exact."""
        aggregates: Literal["sum", "none"] = "sum"
        """Copies sum their partial aggregates; or in training each uses only its own (0c)."""
        gradients: Literal["own", "delayed"] = "own"
        """With a delay, each copy uses only its own gradient; or gradients are summed with the same delay."""

    params: Params
    recurrence = DelayedCopies

    @cached_property
    def sizes(self) -> dict[int, ShareSizes]:
        """The sizes of the ranks' shares, cached by rank, because finding a share takes the whole graph."""
        return {}

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "copies hold their own features, which must not change: leave training.features at false"
        return super().refuse()

    @property
    def effective_promise(self) -> Promise:
        late = self.spec.ranks > 1 and (self.delay or self.is_local_only)
        return Promise.APPROXIMATE if late else Promise.EXACT

    @property
    def is_local_only(self) -> bool:
        """True for 0c, in which copies use only their own partial aggregates."""
        return self.params.aggregates == "none"

    @property
    def delay(self) -> int:
        """The number of bins; 0 for cd-0 and 0c."""
        return 0 if self.is_local_only else self.params.delay

    @property
    def aggregate_first_reason(self) -> str | None:
        return self.stale_order_reason if self.delay else None

    def is_last(self, layer: int) -> bool:
        return layer + 1 == len(self.shapes)

    def reduced_tensor(self, direction: Direction, layer: int) -> TensorName:
        """Return the name of the tensor that copies sum in a direction of a layer."""
        names = (TensorName.Z, TensorName.G) if self.combines_first(layer) else (TensorName.T, TensorName.DT)
        return names[direction is BACKWARD]

    def message_directions(self, layer: int, direction: Direction) -> tuple[bool, bool]:
        """Return whether copies send to masters, and whether masters send to copies."""
        last = self.is_last(layer)
        return direction is FORWARD or not last, direction is BACKWARD or not last

    def reductions(self) -> list[tuple[Direction, int, int]]:
        """Return the direction, layer and width of every sum over copies in an epoch."""
        widths = [shape[self.combines_first(layer)] for layer, shape in enumerate(self.shapes)]
        forward = [(FORWARD, layer, width) for layer, width in enumerate(widths)]
        if self.delay and self.params.gradients == "own":
            return forward
        backward = [
            layer for layer, _ in enumerate(widths) if self.combines_first(layer) or self.needs_dH(layer)
        ]
        return forward + [(BACKWARD, layer, widths[layer]) for layer in backward]

    def in_bin(self, vertices: Tensor, number: int) -> Tensor:
        """Return a mask of the vertices that are in a bin."""
        return vertices % max(self.delay, 1) == number

    def record_sizes(self, rank: int, share: RankShare, *, in_cut: bool) -> ShareSizes:
        """Count the share of a rank, and cache its sizes."""
        bins = range(max(self.delay, 1))
        M, K = ([sum(int(self.in_bin(each, b).sum()) for each in lists) for b in bins] for lists in share[1:])
        self.sizes[rank] = ShareSizes(int(share.entries.sum()), in_cut, M, K)
        return self.sizes[rank]

    def sizes_of(self, at: Coordinates, counts: Counts) -> ShareSizes:
        """Return the sizes of a rank's share, which are counted once."""
        if known := self.sizes.get(at[P]):
            return known
        edge_parts = counts.edge_parts()
        share = find_share(counts.adjacency(), edge_parts, self.blocks(), at[P])
        return self.record_sizes(at[P], share, in_cut=edge_parts is not None)

    def holds_transpose(self, sizes: ShareSizes) -> bool:
        """Return whether a rank holds the transpose of its piece A_p in addition to A_p.

        The pieces of a symmetric A also sum to A^T, which suffices if all copies are summed immediately. A copy that
        uses only its own sum, or a delayed one, needs A_p^T. This equals A_p only if a vertex cut keeps both entries of
        an edge on one rank; by parity, (i, j) and (j, i) are on different ranks.
        """
        return self.facts.directed or (self.effective_promise is not Promise.EXACT and not sizes.in_cut)

    def operators(self, ctx: Context) -> CopiedRows:
        return CopiedRows(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Return the words of each sum (M rows at masters, K at copies, of the epoch's bin), of dW and of the loss."""
        words, number = Words(self.grid), epoch % max(self.delay, 1)
        sizes = self.sizes_of(at, counts)
        M, K = sizes.M[number], sizes.K[number]
        for direction, layer, width in () if self.is_local_only else self.reductions():
            up, down = self.message_directions(layer, direction)
            words.add(
                direction,
                layer,
                Op.ALL_TO_ALL,
                P,
                self.reduced_tensor(direction, layer),
                width * (M * up + K * down),
            )
        self.add_reductions(words, P)
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """A of this rank's edges and its transpose; X of all copies; V, M and S; what has arrived of other copies."""
        sizes, precision = self.sizes_of(at, counts), self.spec.precision
        N, M, K = len(self.rows(at)), sum(sizes.M), sum(sizes.K)
        word, matrix = WORD[precision], csr_bytes(N + K, sizes.entries, precision)
        held = {**dense_bytes(self, at), TensorName.A: matrix * (1 + self.holds_transpose(sizes))}
        held[TensorName.X] += word * K * self.facts.features
        in_bins = (M + K) * bool(self.delay)
        held[TensorName.INDEX] = LONG * (N + K + M + in_bins) + csr_bytes(N, M, precision)
        for direction, layer, width in self.reductions() if self.delay else ():
            tensor = self.reduced_tensor(direction, layer)
            held[tensor] = held.get(tensor, 0) + word * width * (M + K)
        return held
