"""Placements of the features: the rows of X on a rank, the rows of others in its cache, and the way to all others.

A placement answers for its rank (`on`: the store that gives mini-batches their features and labels), for its words and
for its bytes. Where the features are partitioned, a rank names the rows that it lacks to their owners, each once, and
gets them in one all-to-all. Ranks along the other axis have copies of the same blocks and never ask each other (section
6 of Tripathy, Yelick and Buluc). Rows in a rank's cache are not requested either; a policy (`caches`) fills the cache.

The state of a cache is a function of the graph and of the mini-batches so far, and so are the requests of a rank.
Formulas and replays follow the caches of all ranks in this way (`PeerCaches`).

Legend: N vertices of this rank's block, K vertices of a mini-batch's input, M rows that leave, S slots of the cache, F
features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.comm.call import CompletedCall, Pending
from harness.device import upload
from harness.kernels import Csr
from harness.kernels.attention import attend, softmax_torch
from harness.kernels.parts import extract_block
from harness.ledger import Op, Phase, TensorName
from harness.models.gat import compute_scores, concatenate_heads, split_heads
from harness.parallel.label_loss import LabelLoss
from harness.parallel.row_requests import (
    RowRequests,
    invert_permutation,
    is_in_block,
    request_rows,
    select_owner,
    sort_by_owner,
)
from harness.ranges import split_evenly
from harness.strategies.sampling.graph_placement import BlockLayout, Foresight, Rank, Tally
from harness.strategies.sampling.sampler import Sampler
from harness.strategy import Coordinates, Counts, Once, Piece, every_time, require_entries

ReadRows = Callable[[range], Csr]
"""Reads some rows of a graph, with all columns."""


class Lookup(NamedTuple):
    """The answer of a cache for the vertices of one mini-batch: hits, misses, and rows to exchange."""

    requested: Tensor
    """The vertices whose rows are to be fetched: the misses, then rows that the cache wants for later."""
    misses: Tensor
    """The positions of the cache misses among the vertices of the mini-batch."""
    hits: Tensor
    """The positions of the cache hits, and the slots that hold their rows."""
    slots: Tensor
    freed: Tensor
    """The slots to refill once the rows have arrived, and the positions of the new rows among `requested`."""
    newcomers: Tensor


class Cache(Protocol):
    """Rows of other ranks in slots."""

    vertices: Tensor
    """The vertex of every slot."""

    def held(self) -> list[Tensor]:
        """All numbers that the cache keeps besides rows, of eight bytes each."""

    def look_up(self, vertices: Tensor) -> Lookup:
        """Looks up a mini-batch; to be called once for every mini-batch, in turn."""

    def packed(self) -> "Callable[[], Cache]":
        """Returns a function that makes the cache again as it is now, from tensors of the size of its contents."""


class NoCache:
    """Every row is fetched."""

    def __init__(self) -> None:
        self.vertices = torch.empty(0, dtype=torch.int64)

    def held(self) -> list[Tensor]:
        return []

    def look_up(self, vertices: Tensor) -> Lookup:
        everything = torch.arange(len(vertices), device=vertices.device)
        nothing = everything[:0]
        return Lookup(vertices, everything, nothing, nothing, nothing, nothing)

    def packed(self) -> "Callable[[], Cache]":
        return NoCache


class Keeper(NamedTuple):
    """The rank that keeps a cache, as a policy sees it."""

    layout: BlockLayout
    member: int
    """The number of the rank's block row."""
    group: int
    read: ReadRows
    sampler: Sampler
    targets: Tensor
    device: torch.device
    """The device on which mini-batches are looked up."""
    once: Once = every_time

    @property
    def own(self) -> range:
        return self.layout.blocks[self.member]


class Holdings(NamedTuple):
    """The sizes of everything that a rank holds beside its own rows of the features, by formula."""

    rows: int = 0
    """Rows of features that belong to others."""
    numbers: int = 0
    """Numbers of eight bytes: positions and scores."""
    matrix_bytes: int = 0
    every_label: bool = False
    """The rank has the labels of all vertices, to train on."""


@dataclass(frozen=True)
class CachePolicy:
    """The choice of the rows of others that a rank keeps; by default, none."""

    share: float = 0.0
    """The size of the cache, as a share of a number that the policy names; 0 for no cache."""

    @property
    def learns(self) -> bool:
        """True if the rows in a cache depend on the mini-batches so far."""
        return False

    def cache(self, keeper: Keeper) -> Cache:
        """The cache of a rank when training begins."""
        return self.build(keeper) if self.share else NoCache()

    def caches(self, keepers: Sequence[Keeper]) -> "Iterator[Cache]":
        """The caches of several ranks when training begins, one after the other."""
        return map(self.cache, keepers)

    def holdings(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        """The sizes of the cache of the rank at `at`, by formula."""
        return self.size(layout, at, counts) if self.share else Holdings()

    def build(self, keeper: Keeper) -> Cache:
        """The cache, where the share is above 0."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")

    def size(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        """The sizes of this cache."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")


class PeerCaches:
    """The caches of the ranks that have all block rows between them, followed mini-batch after mini-batch."""

    def __init__(
        self, policy: CachePolicy, layout: BlockLayout, at: Coordinates, foresight: Foresight, read: ReadRows
    ) -> None:
        self.policy, self.layout, self.foresight, self.read = policy, layout, foresight, read
        self.groups = layout.peer_groups(at)
        self._layout = tuple(self.groups), tuple(layout.blocks)
        self._followed = 0

    def new_cache(self, member: int, device: torch.device) -> Cache:
        """The cache of the rank with this block row when training begins, for mini-batches on a device."""
        return self.policy.cache(self._keeper(member, device))

    def _keeper(self, member: int, device: torch.device) -> Keeper:
        sampler, targets, group = self.foresight.sampler, self.foresight.targets, self.groups[member]
        return Keeper(self.layout, member, group, self.read, sampler, targets, device, self.foresight.once)

    @cached_property
    def _caches(self) -> list[Callable[[], Cache]]:
        """The caches of all ranks, packed: the table of a cache is as long as the graph has vertices."""
        keepers = [self._keeper(member, torch.device("cpu")) for member in range(len(self.groups))]
        return [cache.packed() for cache in self.policy.caches(keepers)]

    def first_requests(self) -> list[Tensor]:
        """The vertices whose rows each rank keeps when training begins."""
        key = "first requests", self.policy, self._layout
        return list(self.foresight.once(key, lambda: [make().vertices.clone() for make in self._caches]))

    def requests(self, step: int) -> list[Tensor]:
        """The vertices whose rows each rank requests; to be called for every step, in turn."""
        key = "requests", step, self.policy, self._layout
        return list(self.foresight.once(key, lambda: self._follow(step)))

    def _follow(self, step: int) -> list[Tensor]:
        """Looks up the mini-batches of all ranks; caches that learn have to see all of them up to this one."""
        for each in range(self._followed if self.policy.learns else step, step + 1):
            requested = [self._look_up(member, each) for member in range(len(self.groups))]
        self._followed = step + 1
        return requested

    def _look_up(self, member: int, step: int) -> Tensor:
        """The vertices whose rows one rank requests."""
        cache = self._caches[member]()
        requested = cache.look_up(self.foresight.vertices(step, self.groups[member])[0]).requested
        if self.policy.learns:
            self._caches[member] = cache.packed()
        return requested


class Arriving(Protocol):
    """Rows of features that are under way."""

    def wait(self) -> Tensor:
        """All rows that a mini-batch needs, in the order of its vertices."""


class FeatureStore(ABC):
    """The features and labels of one rank's mini-batches."""

    phase = Phase.SAMPLE
    """The phase in which mini-batches are completed."""

    @abstractmethod
    def begin(self, step: int, vertices: Tensor, *, later: bool) -> Arriving:
        """Begins to fetch X[vertices], each vertex once; with `later`, the rows travel while the rank computes."""

    @abstractmethod
    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        """The loss on some vertices of the graph."""

    @abstractmethod
    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        """T = A H on the whole graph, given the part of A that the placement of the graph puts on this rank."""

    @abstractmethod
    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        """Z of attention on the whole graph, over the entries of the same part of A; not differentiable."""


class FeaturePlacement(ABC):
    """A placement of the features."""

    @abstractmethod
    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> FeatureStore:
        """The store of a rank, given its own rows and their labels."""

    def add_words(self, tally: Tally) -> None:
        """Adds the words of fetching; by default none, as no rank asks another."""
        return

    def holdings(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        """The sizes of everything that the rank at `at` holds beside its own rows, by formula."""
        return Holdings()


class LocalFeatures(FeaturePlacement):
    """Every rank has the features of all vertices that its mini-batches can contain."""

    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "LocalStore":
        return LocalStore(rank, X_NF, labels)


class LocalStore(FeatureStore):
    """The rows of one rank, where no others are needed."""

    def __init__(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> None:
        self.ctx, self.X_NF, self.labels = rank.ctx, X_NF, labels
        self.start = rank.layout.rows(rank.ctx.at).start

    def begin(self, step: int, vertices: Tensor, *, later: bool) -> Arriving:
        with self.ctx.ledger.phase(Phase.SAMPLE), self.ctx.ledger.op(Op.COPY, tensor=TensorName.A):
            return CompletedCall(self.X_NF.index_select(0, self._positions(vertices)))

    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        return self.labels.select(self._positions(vertices), importance=importance)

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        return self.ctx.kernels.spmm(A, H_NF, TensorName.T)

    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        return attend(A, compute_scores(T_QNF, a_2H[0]), compute_scores(T_QNF, a_2H[1]), T_QNF)[1]

    def _positions(self, vertices: Tensor) -> Tensor:
        return upload(vertices - self.start, self.ctx.device)


@dataclass(frozen=True)
class PartitionedFeatures(FeaturePlacement):
    """Block rows of the features; rows of others are fetched from their owners, or found in a cache."""

    policy: CachePolicy = CachePolicy()

    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "FetchingStore":
        return FetchingStore(rank, self.policy, X_NF, labels)

    def add_words(self, tally: Tally) -> None:
        """Adds the requests for all rows that are neither in the rank's block nor in its cache, and these rows."""
        layout, at, steps, foresight = tally.layout, tally.at, tally.steps, tally.foresight
        own, member, A = layout.rows(at), layout.member(at), foresight.graph.A
        peers = PeerCaches(
            self.policy, layout, at, foresight, lambda rows: extract_block(A, rows, layout.vertices)
        )
        for step in range(0 if self.policy.learns else steps.start, steps.stop):
            requested = peers.requests(step)
            if step not in steps:
                continue
            owned = [int(is_in_block(vertices, own).sum()) for vertices in requested]
            arriving, asked = len(requested[member]) - owned[member], sum(owned) - owned[member]
            tally.put(Op.ALL_TO_ALL, layout.over, TensorName.COUNT, len(layout.blocks))
            tally.put(Op.ALL_TO_ALL, layout.over, TensorName.INDEX, asked)
            tally.put(Op.ALL_TO_ALL, layout.over, TensorName.X, arriving * tally.facts.features)

    def holdings(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        return self.policy.holdings(layout, at, counts)._replace(every_label=True)


class FetchingStore(FeatureStore):
    """The block row of one rank, its cache, and the way to the owners of all other rows."""

    phase = Phase.FETCH

    def __init__(self, rank: Rank, policy: CachePolicy, X_NF: Tensor, labels: LabelLoss) -> None:
        ctx, layout = rank.ctx, rank.layout
        self.ctx, self.X_NF, self.labels = ctx, X_NF, labels
        self.blocks, self.over = layout.blocks, rank.holders
        self.copies = ctx.grid[layout.copied] if layout.copied else None
        self.every_label = ctx.blocks.training_labels(Piece(layout.vertices, range(ctx.facts.classes)))

        def read(rows: range) -> Csr:
            return ctx.blocks.host_block(rows, layout.vertices)

        if policy.share:
            reason, way_out = "its hits depend on the entries of the graph", "train without a cache"
            require_entries(read(range(0)), "A cache", reason, way_out)
        rank.foresight.read_ahead()
        self.peers = PeerCaches(policy, layout, ctx.at, rank.foresight, rank.foresight.reader(read))
        drawn_on = torch.device("cpu") if ctx.device.type == "meta" else ctx.device
        self.cache = self.peers.new_cache(layout.member(ctx.at), drawn_on)
        for tensor in self.cache.held():
            ctx.memory.hold(TensorName.INDEX, tensor)
        self.X_SF = ctx.memory.buffer(TensorName.X, len(self.cache.vertices), ctx.facts.features)
        if policy.share:
            self._fill()

    def begin(self, step: int, vertices: Tensor, *, later: bool) -> "FetchedRows":
        with self.ctx.ledger.phase(Phase.FETCH):
            with self.ctx.ledger.op(Op.COPY, tensor=TensorName.INDEX):
                lookup = self.cache.look_up(vertices)
            rows = self._request(lookup, lambda: self.peers.requests(step), later=later)
        absent, hits = sum(rows.requests.receive_counts), len(lookup.hits)
        self.ctx.measured.remote.rows += absent - (len(lookup.requested) - len(lookup.misses)) + hits
        self.ctx.measured.remote.cached += hits
        return rows

    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        return self.labels.select(vertices.to(self.ctx.device), self.every_label, importance)

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        """T = A H by broadcasts of the block rows of H, one owner after the other.

        With copies, this is CAGNET's 1.5D product: each rank multiplies by its share of the block rows, and the ranks
        of a grid row add up their results.
        """
        T_NF, rows = torch.zeros_like(H_NF), self._rows_of(A)
        for q in self._stages():
            H_KF = self._block_of(q, H_NF, TensorName.H)
            self.ctx.kernels.spmm(extract_block(A, rows, self.blocks[q]), H_KF, TensorName.T, add_to=T_NF)
        return self.copies.all_reduce(T_NF, tensor=TensorName.T) if self.copies else T_NF

    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        """Z by the same broadcasts of T, once the scores of all vertices have given the weights of all entries."""
        s_NQ = compute_scores(T_QNF, a_2H[1]).T.contiguous()
        s_VQ = torch.cat([self._block_of(q, s_NQ, TensorName.SCORES) for q in range(self.over.size)])
        A_NV = extract_block(A, self._rows_of(A), range(len(s_VQ)))
        d_QN, T_NH, Z_QNF = compute_scores(T_QNF, a_2H[0]), concatenate_heads(T_QNF), torch.zeros_like(T_QNF)
        a_QE = [softmax_torch(A_NV, d_N, s_V) for d_N, s_V in zip(d_QN, s_VQ.T, strict=True)]
        places = A_NV._replace(val=torch.arange(A_NV.nnz, device=A_NV.val.device))
        for q in self._stages():
            T_QKF = split_heads(self._block_of(q, T_NH, TensorName.T), len(a_QE))
            A_NK = extract_block(places, range(A_NV.rows), self.blocks[q])
            for a_E, T_KF, Z_NF in zip(a_QE, T_QKF, Z_QNF, strict=True):
                self.ctx.kernels.spmm(A_NK._replace(val=a_E[A_NK.val]), T_KF, TensorName.Z, add_to=Z_NF)
        return self.copies.all_reduce(Z_QNF, tensor=TensorName.Z) if self.copies else Z_QNF

    def _rows_of(self, A: Csr) -> range:
        """This rank's rows of A, which has this rank's rows alone, or the rows of all."""
        own = self.blocks[self.over.index]
        first = 0 if A.rows == len(own) else own.start
        return range(first, first + len(own))

    def _stages(self) -> range:
        """The numbers of the block rows whose products this rank computes."""
        if self.copies is None:
            return range(self.over.size)
        return split_evenly(self.over.size, self.copies.size)[self.copies.index]

    def _block_of(self, q: int, x_NF: Tensor, tensor: TensorName) -> Tensor:
        """The rows of the owner q, by a broadcast."""
        shape = (len(self.blocks[q]), x_NF.shape[1])
        return self.over.broadcast(x_NF, root=q, shape=shape, tensor=tensor)

    def _fill(self) -> None:
        """Fetches the rows with which the cache begins."""
        vertices = self.cache.vertices
        everything = torch.arange(len(vertices), device=vertices.device)
        lookup = Lookup(vertices, everything, everything[:0], everything[:0], everything, everything)
        self._request(lookup, self.peers.first_requests, later=False).wait()

    def _request(
        self, lookup: Lookup, foreseen: Callable[[], Sequence[Tensor]], *, later: bool
    ) -> "FetchedRows":
        """Requests rows from their owners; `foreseen` are the requests of all peers, for a replay."""
        over, device = self.over, self.X_NF.device
        with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
            order, counts = sort_by_owner(lookup.requested, self.blocks)
            named = lookup.requested.index_select(0, order).to(device)
        requests = request_rows(over, self.blocks, named, counts, lambda: list(map(self._owned, foreseen())))
        with over.ledger.op(Op.COPY, tensor=TensorName.X):
            leaving_MF = self.X_NF.index_select(0, requests.requested.to(device))
        call = requests.exchange(leaving_MF, TensorName.X)
        return FetchedRows(
            self, lookup, order, requests, call.later() if later else CompletedCall(call.now())
        )

    def _owned(self, vertices: Tensor) -> Tensor:
        """Those of the vertices that are in this rank's block."""
        return select_owner(vertices, self.blocks, self.over.index)


class FetchedRows(NamedTuple):
    """Rows of features that owners send to a rank."""

    store: FetchingStore
    lookup: Lookup
    order: Tensor
    """The order of the requested vertices by owner."""
    requests: RowRequests
    arriving: Pending[Tensor]

    def wait(self) -> Tensor:
        """All rows of the mini-batch, in the order of its vertices; the cache takes its newcomers."""
        store, lookup = self.store, self.lookup
        with store.ctx.ledger.phase(Phase.FETCH):
            arrived = self.arriving.wait()
            device = arrived.device
            with store.over.ledger.op(Op.COPY, tensor=TensorName.X):
                own = store.X_NF.index_select(0, self.requests.own)
                cached = store.X_SF.index_select(0, lookup.slots.to(device))
                rows = torch.cat([*self.requests.merge(arrived, own), cached])
                requested = invert_permutation(self.order)  # the row of every requested vertex
                place = requested.new_empty(len(lookup.misses) + len(lookup.hits))
                place[lookup.misses] = requested[: len(lookup.misses)]
                place[lookup.hits] = torch.arange(len(lookup.hits), device=place.device) + len(requested)
                newcomers = rows.index_select(0, requested[lookup.newcomers].to(device))
                store.X_SF.index_copy_(0, lookup.freed.to(device), newcomers)
                return rows.index_select(0, place.to(device))
