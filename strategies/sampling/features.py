"""Placements of the features: which rows of X a rank has and caches, and how it fetches all other rows.

A placement provides a rank's store of features and labels (`create_store`), its words and its bytes. If features are
partitioned, a rank requests the rows that it lacks from their owners, each once, and receives them in one all-to-all.
Ranks along the other axis have copies of the same blocks and do not communicate (section 6 of Tripathy, Yelick and
Buluc). A rank does not request rows in its cache, which a policy (`caches`) fills.

The state of a cache, and so a rank's requests, is a function of the graph and of all earlier mini-batches. Formulas and
replays therefore simulate the caches of all ranks (`PeerCaches`).

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

from harness.base.device import upload
from harness.base.ranges import split_evenly
from harness.comm.call import CompletedCall, Pending
from harness.kernels import Csr
from harness.kernels.attention import attend, softmax_torch
from harness.kernels.parts import extract_block
from harness.ledger import Op, Phase, TensorName
from harness.strategies.sampling.graph_placement import BlockLayout, GlobalReplay, Rank, WordCount
from harness.strategies.sampling.sampler import Sampler
from harness.strategy import Coordinates, Counts, Once, Piece, compute_every_time, require_entries
from harness.strategy.models.gat import compute_scores, concatenate_heads, split_heads
from harness.strategy.parallel.label_loss import LabelLoss
from harness.strategy.parallel.row_requests import (
    RowRequests,
    invert_permutation,
    is_in_block,
    request_rows,
    select_owner,
    sort_by_owner,
)

ReadRows = Callable[[range], Csr]
"""Reads a range of rows of the graph, with all columns."""


class Lookup(NamedTuple):
    """The result of looking up a mini-batch's vertices in a cache: hits, misses, and rows to replace."""

    requested: Tensor
    """The vertices whose rows must be fetched: the misses, then rows that the cache will store."""
    misses: Tensor
    """The positions of the cache misses among the vertices of the mini-batch."""
    hits: Tensor
    """The positions of the cache hits, and the slots that hold their rows."""
    slots: Tensor
    freed: Tensor
    """The slots to refill when the rows have arrived, and the positions of the new rows in `requested`."""
    newcomers: Tensor


class Cache(Protocol):
    """A cache of rows of other ranks, in slots."""

    vertices: Tensor
    """The vertex of every slot."""

    def held_tensors(self) -> list[Tensor]:
        """Return the tensors that the cache holds besides rows, with elements of eight bytes."""

    def look_up(self, vertices: Tensor) -> Lookup:
        """Look up a mini-batch; call this once for each mini-batch, in order."""

    def pack(self) -> "Callable[[], Cache]":
        """Return a function that rebuilds the cache from tensors of the size of its contents."""


class NoCache:
    """Every row is fetched."""

    def __init__(self) -> None:
        self.vertices = torch.empty(0, dtype=torch.int64)

    def held_tensors(self) -> list[Tensor]:
        return []

    def look_up(self, vertices: Tensor) -> Lookup:
        positions = torch.arange(len(vertices), device=vertices.device)
        empty = positions[:0]
        return Lookup(vertices, positions, empty, empty, empty, empty)

    def pack(self) -> "Callable[[], Cache]":
        return NoCache


class CacheOwner(NamedTuple):
    """What a policy knows about the rank that has the cache."""

    layout: BlockLayout
    member: int
    """The number of the rank's block row."""
    group: int
    read: ReadRows
    sampler: Sampler
    targets: Tensor
    device: torch.device
    """The device on which mini-batches are looked up."""
    once: Once = compute_every_time

    @property
    def own(self) -> range:
        return self.layout.blocks[self.member]


class HeldSizes(NamedTuple):
    """The sizes of what a rank holds in addition to its own rows of the features, by formula."""

    rows: int = 0
    """The number of feature rows of other ranks."""
    numbers: int = 0
    """The number of positions and scores, of eight bytes each."""
    matrix_bytes: int = 0
    every_label: bool = False
    """True if the rank has the training labels of all vertices."""


@dataclass(frozen=True)
class CachePolicy:
    """Decides which rows of other ranks a rank caches; by default, none."""

    share: float = 0.0
    """The size of the cache, relative to a number that the policy defines; 0 for no cache."""

    @property
    def learns(self) -> bool:
        """True if the cached rows depend on earlier mini-batches."""
        return False

    def initial_cache(self, owner: CacheOwner) -> Cache:
        """Return the cache of a rank at the start of training."""
        return self.build_cache(owner) if self.share else NoCache()

    def initial_caches(self, owners: Sequence[CacheOwner]) -> "Iterator[Cache]":
        """Yield the caches of several ranks at the start of training."""
        return map(self.initial_cache, owners)

    def held_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        """Return the sizes of the cache of the rank at `at`, by formula."""
        return self.cache_sizes(layout, at, counts) if self.share else HeldSizes()

    def build_cache(self, owner: CacheOwner) -> Cache:
        """Build the cache, given a share above 0."""
        raise NotImplementedError(f"{type(self).__name__} caches no rows")

    def cache_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        """Return the sizes of this cache, given a share above 0."""
        raise NotImplementedError(f"{type(self).__name__} caches no rows")


class PeerCaches:
    """Simulates the caches of the ranks that together have all block rows, mini-batch by mini-batch."""

    def __init__(
        self,
        policy: CachePolicy,
        layout: BlockLayout,
        at: Coordinates,
        global_replay: GlobalReplay,
        read: ReadRows,
    ) -> None:
        self.policy, self.layout, self.global_replay, self.read = policy, layout, global_replay, read
        self.groups = layout.peer_groups(at)
        self._layout = tuple(self.groups), tuple(layout.blocks)
        self._simulated = 0

    def new_cache(self, member: int, device: torch.device) -> Cache:
        """Return the initial cache of the rank with this block row, for mini-batches on a device."""
        return self.policy.initial_cache(self._owner(member, device))

    def _owner(self, member: int, device: torch.device) -> CacheOwner:
        replay, group = self.global_replay, self.groups[member]
        return CacheOwner(
            self.layout, member, group, self.read, replay.sampler, replay.targets, device, replay.once
        )

    @cached_property
    def _packed_caches(self) -> list[Callable[[], Cache]]:
        """The packed caches of all ranks, because a cache in use has a table with an element for each vertex."""
        owners = [self._owner(member, torch.device("cpu")) for member in range(len(self.groups))]
        return [cache.pack() for cache in self.policy.initial_caches(owners)]

    def first_requests(self) -> list[Tensor]:
        """Return the vertices whose rows each rank caches at the start of training."""
        key = "first requests", self.policy, self._layout

        def list_cached_vertices() -> list[Tensor]:
            return [unpack().vertices.clone() for unpack in self._packed_caches]

        return list(self.global_replay.once(key, list_cached_vertices))

    def requests(self, step: int) -> list[Tensor]:
        """Return the vertices whose rows each rank requests in a step; call this for each step, in order."""
        key = "requests", step, self.policy, self._layout
        return list(self.global_replay.once(key, lambda: self._simulate_step(step)))

    def _simulate_step(self, step: int) -> list[Tensor]:
        """Look up the mini-batches of all ranks; caches that learn must see all of them up to this step."""
        for each in range(self._simulated if self.policy.learns else step, step + 1):
            requested = [self._look_up(member, each) for member in range(len(self.groups))]
        self._simulated = step + 1
        return requested

    def _look_up(self, member: int, step: int) -> Tensor:
        """Return the vertices whose rows one rank requests."""
        cache = self._packed_caches[member]()
        inputs = self.global_replay.vertices(step, self.groups[member])[0]
        requested = cache.look_up(inputs).requested
        if self.policy.learns:
            self._packed_caches[member] = cache.pack()
        return requested


class PendingRows(Protocol):
    """Feature rows in flight."""

    def wait(self) -> Tensor:
        """Return all rows that a mini-batch needs, in the order of its vertices."""


class FeatureStore(ABC):
    """The features and labels of one rank's mini-batches."""

    phase = Phase.SAMPLE
    """The phase that completes mini-batches."""

    @abstractmethod
    def start_fetch(self, step: int, vertices: Tensor, *, later: bool) -> PendingRows:
        """Start to fetch X[vertices], each vertex once; without `later`, wait for the rows too."""

    @abstractmethod
    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        """Return the loss of some vertices."""

    @abstractmethod
    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        """Return T = A H on the whole graph, given this rank's part of A."""

    @abstractmethod
    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        """Return Z of attention on the whole graph, given the same part of A. Not differentiable."""


class FeaturePlacement(ABC):
    """A placement of the features."""

    @abstractmethod
    def create_store(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> FeatureStore:
        """Return the store of a rank, given its own rows and labels."""

    def add_words(self, count: WordCount) -> None:
        """Add the words of fetching features; by default none."""
        return

    def held_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        """Return the sizes of what the rank at `at` holds in addition to its own rows, by formula."""
        return HeldSizes()


class LocalFeatures(FeaturePlacement):
    """Every rank has the features of all vertices in its mini-batches."""

    def create_store(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "LocalStore":
        return LocalStore(rank, X_NF, labels)


class LocalStore(FeatureStore):
    """The store of a rank that needs no rows of other ranks."""

    def __init__(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> None:
        self.ctx, self.X_NF, self.labels = rank.ctx, X_NF, labels
        self.start = rank.layout.rows(rank.ctx.at).start

    def start_fetch(self, step: int, vertices: Tensor, *, later: bool) -> PendingRows:
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
    """Block rows of the features. Rows of other ranks are fetched from their owners or found in a cache."""

    policy: CachePolicy = CachePolicy()

    def create_store(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "FetchingStore":
        return FetchingStore(rank, self.policy, X_NF, labels)

    def add_words(self, count: WordCount) -> None:
        """Add the requests for all rows that are neither in the rank's block nor in its cache, and the rows."""
        layout, at, steps, global_replay = count.layout, count.at, count.steps, count.global_replay
        own, member, A = layout.rows(at), layout.member(at), global_replay.graph.A
        peers = PeerCaches(
            self.policy, layout, at, global_replay, lambda rows: extract_block(A, rows, layout.vertices)
        )
        for step in range(0 if self.policy.learns else steps.start, steps.stop):
            requested = peers.requests(step)
            if step not in steps:
                continue
            owned = [int(is_in_block(vertices, own).sum()) for vertices in requested]
            arriving, asked = len(requested[member]) - owned[member], sum(owned) - owned[member]
            count.add(Op.ALL_TO_ALL, layout.over, TensorName.COUNT, len(layout.blocks))
            count.add(Op.ALL_TO_ALL, layout.over, TensorName.INDEX, asked)
            count.add(Op.ALL_TO_ALL, layout.over, TensorName.X, arriving * count.facts.features)

    def held_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        return self.policy.held_sizes(layout, at, counts)._replace(every_label=True)


class FetchingStore(FeatureStore):
    """The block row of one rank, its cache, and requests to the owners of all other rows."""

    phase = Phase.FETCH

    def __init__(self, rank: Rank, policy: CachePolicy, X_NF: Tensor, labels: LabelLoss) -> None:
        ctx, layout = rank.ctx, rank.layout
        self.ctx, self.X_NF, self.labels = ctx, X_NF, labels
        self.blocks, self.over = layout.blocks, rank.holders
        self.copies = ctx.grid[layout.copied] if layout.copied else None
        self.every_label = ctx.blocks.training_labels(Piece(layout.vertices, range(ctx.facts.classes)))

        def read(rows: range) -> Csr:
            return ctx.blocks.host_adjacency(rows, layout.vertices)

        if policy.share:
            reason, way_out = "its hits depend on the entries of the graph", "train without a cache"
            require_entries(read(range(0)), "A cache", reason, way_out)
        rank.global_replay.read_graph_in_replay()
        self.peers = PeerCaches(
            policy, layout, ctx.at, rank.global_replay, rank.global_replay.row_reader(read)
        )
        lookup_device = torch.device("cpu") if ctx.device.type == "meta" else ctx.device
        self.cache = self.peers.new_cache(layout.member(ctx.at), lookup_device)
        for tensor in self.cache.held_tensors():
            ctx.memory.hold(TensorName.INDEX, tensor)
        self.X_SF = ctx.memory.hold_zeros(TensorName.X, len(self.cache.vertices), ctx.facts.features)
        if policy.share:
            self._fill_cache()

    def start_fetch(self, step: int, vertices: Tensor, *, later: bool) -> "FetchedRows":
        with self.ctx.ledger.phase(Phase.FETCH):
            with self.ctx.ledger.op(Op.COPY, tensor=TensorName.INDEX):
                lookup = self.cache.look_up(vertices)
            rows = self._request_rows(lookup, lambda: self.peers.requests(step), later=later)
        absent, hits = sum(rows.requests.receive_counts), len(lookup.hits)
        self.ctx.measured.remote.rows += absent - (len(lookup.requested) - len(lookup.misses)) + hits
        self.ctx.measured.remote.cached += hits
        return rows

    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        return self.labels.select(vertices.to(self.ctx.device), self.every_label, importance)

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        """Return T = A H by broadcasting the block rows of H one after the other.

        With copies this is CAGNET's 1.5D product: each rank multiplies by its share of the block rows, and the ranks of
        a grid row sum their results.
        """
        T_NF, rows = torch.zeros_like(H_NF), self._rows_of(A)
        for q in self._stages():
            H_KF = self._broadcast_block(q, H_NF, TensorName.H)
            self.ctx.kernels.spmm(extract_block(A, rows, self.blocks[q]), H_KF, TensorName.T, add_to=T_NF)
        return self.copies.all_reduce(T_NF, tensor=TensorName.T) if self.copies else T_NF

    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        """Return Z by the same broadcasts of T, after the scores of all vertices have determined all edge weights."""
        s_NQ = compute_scores(T_QNF, a_2H[1]).T.contiguous()
        s_VQ = torch.cat([self._broadcast_block(q, s_NQ, TensorName.SCORES) for q in range(self.over.size)])
        A_NV = extract_block(A, self._rows_of(A), range(len(s_VQ)))
        d_QN, T_NH, Z_QNF = compute_scores(T_QNF, a_2H[0]), concatenate_heads(T_QNF), torch.zeros_like(T_QNF)
        a_QE = [softmax_torch(A_NV, d_N, s_V) for d_N, s_V in zip(d_QN, s_VQ.T, strict=True)]
        places = A_NV._replace(val=torch.arange(A_NV.nnz, device=A_NV.val.device))
        for q in self._stages():
            T_QKF = split_heads(self._broadcast_block(q, T_NH, TensorName.T), len(a_QE))
            A_NK = extract_block(places, range(A_NV.rows), self.blocks[q])
            for a_E, T_KF, Z_NF in zip(a_QE, T_QKF, Z_QNF, strict=True):
                self.ctx.kernels.spmm(A_NK._replace(val=a_E[A_NK.val]), T_KF, TensorName.Z, add_to=Z_NF)
        return self.copies.all_reduce(Z_QNF, tensor=TensorName.Z) if self.copies else Z_QNF

    def _rows_of(self, A: Csr) -> range:
        """Return the range of this rank's rows in A, which has either this rank's rows or all rows."""
        own = self.blocks[self.over.index]
        first = 0 if A.rows == len(own) else own.start
        return range(first, first + len(own))

    def _stages(self) -> range:
        """Return the numbers of the block rows that this rank multiplies by."""
        if self.copies is None:
            return range(self.over.size)
        return split_evenly(self.over.size, self.copies.size)[self.copies.index]

    def _broadcast_block(self, q: int, x_NF: Tensor, tensor: TensorName) -> Tensor:
        """Broadcast the rows of the owner q."""
        shape = (len(self.blocks[q]), x_NF.shape[1])
        return self.over.broadcast(x_NF, root=q, shape=shape, tensor=tensor)

    def _fill_cache(self) -> None:
        """Fetch the initial rows of the cache."""
        vertices = self.cache.vertices
        positions = torch.arange(len(vertices), device=vertices.device)
        empty = positions[:0]
        lookup = Lookup(vertices, positions, empty, empty, freed=positions, newcomers=positions)
        self._request_rows(lookup, self.peers.first_requests, later=False).wait()

    def _request_rows(
        self, lookup: Lookup, replayed: Callable[[], Sequence[Tensor]], *, later: bool
    ) -> "FetchedRows":
        """Request rows from their owners; `replayed` returns the requests of all peers, for a replay."""
        over, device = self.over, self.X_NF.device
        with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
            order, counts = sort_by_owner(lookup.requested, self.blocks)
            needed = lookup.requested.index_select(0, order).to(device)

        def replayed_requests() -> list[Tensor]:
            return [select_owner(vertices, self.blocks, over.index) for vertices in replayed()]

        requests = request_rows(over, self.blocks, needed, counts, replayed_requests)
        with over.ledger.op(Op.COPY, tensor=TensorName.X):
            leaving_MF = self.X_NF.index_select(0, requests.requested.to(device))
        call = requests.exchange(leaving_MF, TensorName.X)
        indices = [*lookup[1:], order, requests.requested] if device.type == "meta" else []
        shapes = [torch.empty_like(each, device=device) for each in indices]
        return FetchedRows(self, lookup, order, requests, call.issue(overlap=later), shapes)


class FetchedRows(NamedTuple):
    """Feature rows that their owners are sending to a rank."""

    store: FetchingStore
    lookup: Lookup
    order: Tensor
    """The order of the requested vertices by owner."""
    requests: RowRequests
    arriving: Pending[Tensor]
    shapes: Sequence[Tensor] = ()
    """In a replay, the indices as the device holds them while the rows are in flight; they are used on the host."""

    def wait(self) -> Tensor:
        """Return all rows of the mini-batch, in the order of its vertices, and refill the freed slots of the cache."""
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
