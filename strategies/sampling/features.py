"""Stores of features: the rows of X that a rank has, the rows of others that it keeps, and the way to all others.

A store answers for its rank (`on`: where mini-batches get their features and labels), for its words and for its bytes.
With block rows, a rank names the rows that it lacks to their owners, each once, and gets them in one all-to-all; ranks
beside the axis have copies of the same blocks and ask nobody of each other (section 6 of Tripathy, Yelick and Buluc).
Nor is anybody asked for what a cache keeps: a policy of `caches` says what that is.

A cache is a function of the graph and of the mini-batches so far. So whoever knows these knows what a rank asks for:
formulas and replays follow the caches of all ranks so (`Peers`).

Legend: N vertices of this rank's block, K vertices of a mini-batch's input, M rows that leave, S slots of the cache, F
features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.comm.call import Landed, Pending
from harness.kernels import Csr, block
from harness.ledger import Op, Phase, TensorName
from harness.parallel.label_loss import LabelLoss
from harness.parallel.row_requests import Requests, ask, by_owner, inside, inverse
from harness.ranges import balanced
from harness.strategy import Coordinates, Counts, Piece, require_entries
from strategies.sampling.graph_at import Foreseen, Layout, Rank, Tally
from strategies.sampling.sampler import Sampler

Stripe = Callable[[range], Csr]
"""Some rows of a graph, with all its columns."""


class Look(NamedTuple):
    """What a cache says of a mini-batch's vertices."""

    named: Tensor
    """The vertices whose rows are to be fetched: those that it lacks, and then those that it wants for itself."""
    lacking: Tensor
    """The places, among the vertices that were asked for, of those that it lacks."""
    found: Tensor
    """The places of the others, and the slots of their rows."""
    slots: Tensor
    freed: Tensor
    """Slots that get other rows once these have arrived, and the places of these among `named`."""
    newcomers: Tensor


class Cache(Protocol):
    """Rows of others in slots."""

    vertices: Tensor
    """The vertices of its rows, slot by slot, when training begins."""
    learns: bool
    """Whether its rows depend on the mini-batches so far."""

    def held(self) -> list[Tensor]:
        """What it keeps besides rows, all of eight bytes."""

    def look(self, vertices: Tensor) -> Look:
        """To be called for every mini-batch, once and in turn."""


class NoCache:
    """Everything is fetched."""

    learns = False

    def __init__(self) -> None:
        self.vertices = torch.empty(0, dtype=torch.int64)

    def held(self) -> list[Tensor]:
        return []

    def look(self, vertices: Tensor) -> Look:
        everywhere = torch.arange(len(vertices), device=vertices.device)
        nothing = everywhere[:0]
        return Look(vertices, everywhere, nothing, nothing, nothing, nothing)


class Keeper(NamedTuple):
    """The rank that keeps rows of others."""

    layout: Layout
    member: int
    """The number of its block row."""
    group: int
    graph: Stripe
    sampler: Sampler
    targets: Tensor

    @property
    def own(self) -> range:
        return self.layout.blocks[self.member]


class Held(NamedTuple):
    """What a rank holds beside its own rows, by formula."""

    rows: int = 0
    """Rows of features that others have."""
    numbers: int = 0
    """Numbers of eight bytes: positions and scores."""
    matrices: int = 0
    """Bytes."""
    every_label: bool = False
    """Whether it has the labels of all vertices, to train on."""


@dataclass(frozen=True)
class Policy:
    """What a rank keeps of the rows of others; by default, nothing."""

    share: float = 0.0
    """How much it keeps; nothing at 0."""

    def cache(self, keeper: Keeper) -> Cache:
        """The cache of a rank when training begins."""
        return self.kept_by(keeper) if self.share else NoCache()

    def sizes(self, layout: Layout, at: Coordinates, counts: Counts) -> Held:
        """What the cache of the rank at `at` takes, by formula."""
        return self.room(layout, at, counts) if self.share else Held()

    def kept_by(self, keeper: Keeper) -> Cache:
        """The cache where something is kept."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")

    def room(self, layout: Layout, at: Coordinates, counts: Counts) -> Held:
        """What that takes."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")


class Peers:
    """The ranks that have all block rows between them: what they ask each other for, mini-batch after mini-batch."""

    def __init__(
        self, policy: Policy, layout: Layout, at: Coordinates, foreseen: Foreseen, graph: Stripe
    ) -> None:
        self.groups, self.foreseen = layout.peers(at), foreseen
        self.caches = [
            policy.cache(Keeper(layout, member, group, graph, foreseen.sampler, foreseen.targets))
            for member, group in enumerate(self.groups)
        ]

    def kept(self) -> list[Tensor]:
        """The vertices whose rows they keep when training begins."""
        return [cache.vertices for cache in self.caches]

    def named(self, step: int) -> list[Tensor]:
        """The vertices whose rows they ask for; to be called for every step, in turn."""
        inputs = [self.foreseen.batch(step, group).vertices[0] for group in self.groups]
        return [cache.look(K).named for cache, K in zip(self.caches, inputs, strict=True)]


class Arriving(Protocol):
    """Rows that are under way."""

    def wait(self) -> Tensor:
        """All rows that were asked for, in that order."""


class Store(ABC):
    """The features and labels of one rank's mini-batches."""

    phase = Phase.SAMPLE
    """The phase in which mini-batches are completed."""

    @abstractmethod
    def begin(self, step: int, vertices: Tensor, *, later: bool) -> Arriving:
        """X[vertices], each of which is there once; `later`, it arrives while something else is done."""

    @abstractmethod
    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        """The loss on some vertices of the graph."""

    @abstractmethod
    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        """T = A H on the whole graph, given the matrix of this rank's placement of it."""


class Features(ABC):
    """A placement of the features."""

    @abstractmethod
    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> Store:
        """The store of a rank, given its own rows and their labels."""

    def add_words(self, tally: Tally) -> None:
        """Adds the words of fetching; none, where nobody is asked."""
        return

    def held(self, layout: Layout, at: Coordinates, counts: Counts) -> Held:
        """What the rank at `at` holds beside its own rows, by formula."""
        return Held()


class Local(Features):
    """The features of every vertex that its mini-batches can have, on every rank."""

    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "LocalStore":
        return LocalStore(rank, X_NF, labels)


class LocalStore(Store):
    """A rank's own rows."""

    def __init__(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> None:
        self.ctx, self.X_NF, self.labels = rank.ctx, X_NF, labels
        self.start = rank.layout.rows(rank.ctx.at).start

    def begin(self, step: int, vertices: Tensor, *, later: bool) -> Arriving:
        with self.ctx.ledger.phase(Phase.SAMPLE), self.ctx.ledger.op(Op.COPY, tensor=TensorName.A):
            return Landed(self.X_NF.index_select(0, self._places(vertices)))

    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        return self.labels.on(self._places(vertices), importance=importance)

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        return self.ctx.kernels.spmm(A, H_NF, TensorName.T)

    def _places(self, vertices: Tensor) -> Tensor:
        return (vertices - self.start).to(self.ctx.device)


@dataclass(frozen=True)
class FromOwners(Features):
    """Block rows of the features, fetched from their owners; a policy keeps some of them."""

    policy: Policy = Policy()

    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "FetchingStore":
        return FetchingStore(rank, self.policy, X_NF, labels)

    def add_words(self, tally: Tally) -> None:
        """Features that a rank has neither in its block row nor in its cache."""
        layout, at, steps, seen = tally.layout, tally.at, tally.steps, tally.foreseen
        own, here, A = layout.rows(at), layout.member(at), seen.graph.A
        peers = Peers(self.policy, layout, at, seen, lambda rows: block(A, rows, layout.vertices))
        learns = any(cache.learns for cache in peers.caches)
        for step in range(0 if learns else steps.start, steps.stop):
            named = peers.named(step)
            if step not in steps:
                continue
            owned = [int(inside(each, own).sum()) for each in named]
            wanted, asked = len(named[here]) - owned[here], sum(owned) - owned[here]
            tally.put(Op.ALL_TO_ALL, layout.over, TensorName.COUNT, len(layout.blocks))
            tally.put(Op.ALL_TO_ALL, layout.over, TensorName.INDEX, asked)
            tally.put(Op.ALL_TO_ALL, layout.over, TensorName.X, wanted * tally.facts.features)

    def held(self, layout: Layout, at: Coordinates, counts: Counts) -> Held:
        return self.policy.sizes(layout, at, counts)._replace(every_label=True)


class FetchingStore(Store):
    """One rank's block, what it keeps of the others', and the way to the rest."""

    phase = Phase.FETCH

    def __init__(self, rank: Rank, policy: Policy, X_NF: Tensor, labels: LabelLoss) -> None:
        ctx, layout = rank.ctx, rank.layout
        self.ctx, self.X_NF, self.labels = ctx, X_NF, labels
        self.blocks, self.over = layout.blocks, rank.holders
        self.copies = ctx.grid[layout.copied] if layout.copied else None
        self.every_label = ctx.blocks.training_labels(Piece(layout.vertices, range(ctx.facts.classes)))

        def stripe(rows: range) -> Csr:
            return ctx.blocks.host_block(rows, layout.vertices)

        if policy.share and rank.foreseen:
            reason, way_out = "what it saves hangs on the graph", "train without a cache"
            require_entries(rank.foreseen.graph.A, "A cache", reason, way_out)
        self.peers = Peers(policy, layout, ctx.at, rank.foreseen, stripe) if rank.foreseen else None
        """The others, in a replay."""
        member = layout.member(ctx.at)
        self.cache = policy.cache(Keeper(layout, member, rank.group, stripe, rank.sampler, rank.targets))
        for tensor in self.cache.held():
            ctx.memory.hold(TensorName.INDEX, tensor)
        self.X_SF = ctx.memory.buffer(TensorName.X, len(self.cache.vertices), ctx.facts.features)
        if policy.share:
            self._fill()

    def begin(self, step: int, vertices: Tensor, *, later: bool) -> "Coming":
        with self.ctx.ledger.phase(Phase.FETCH):
            with self.ctx.ledger.op(Op.COPY, tensor=TensorName.INDEX):
                look = self.cache.look(vertices)
            coming = self._ask(look, lambda: self._known_peers().named(step), later=later)
        absent, extra = sum(coming.requests.wanted), len(look.named) - len(look.lacking)
        self.ctx.measured.remote.rows += absent - extra + len(look.found)
        self.ctx.measured.remote.cached += len(look.found)
        return coming

    def loss(self, vertices: Tensor, importance: Tensor | None) -> LabelLoss:
        return self.labels.on(vertices.to(self.ctx.device), self.every_label, importance)

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        """By block rows of H, one after the other from the rank that has it.

        With copies CAGNET's 1.5D product: a rank's share of the block rows, then the sum over their grid row.
        """
        T_NF, own = torch.zeros_like(H_NF), self.blocks[self.over.index]
        first = 0 if A.rows == len(own) else own.start  # A has this rank's rows alone, or those of all
        rows, stages = range(first, first + len(own)), range(self.over.size)
        if self.copies:
            stages = balanced(self.over.size, self.copies.size)[self.copies.index]
        for q in stages:
            K, shape = self.blocks[q], (len(self.blocks[q]), H_NF.shape[1])
            H_KF = self.over.broadcast(H_NF, root=q, shape=shape, tensor=TensorName.H)
            self.ctx.kernels.spmm(block(A, rows, K), H_KF, TensorName.T, add_to=T_NF)
        return self.copies.all_reduce(T_NF, tensor=TensorName.T) if self.copies else T_NF

    def _known_peers(self) -> Peers:
        assert self.peers is not None, "in a run other ranks ask for themselves"
        return self.peers

    def _fill(self) -> None:
        """Fetches what the cache begins with."""
        vertices = self.cache.vertices
        everything = torch.arange(len(vertices))
        look = Look(vertices, everything, everything[:0], everything[:0], everything, everything)
        self._ask(look, lambda: self._known_peers().kept(), later=False).wait()

    def _ask(self, look: Look, others: Callable[[], Sequence[Tensor]], *, later: bool) -> "Coming":
        over, device = self.over, self.X_NF.device
        with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
            order, counts = by_owner(look.named, self.blocks)
            named = look.named.index_select(0, order).to(device)
        requests = ask(over, self.blocks, named, counts, lambda: list(map(self._mine_of, others())))
        with over.ledger.op(Op.COPY, tensor=TensorName.X):
            leaving_MF = self.X_NF.index_select(0, requests.coming.to(device))
        call = requests.exchange(leaving_MF, TensorName.X)
        return Coming(self, look, order, requests, call.later() if later else Landed(call.now()))

    def _mine_of(self, vertices: Tensor) -> Tensor:
        """The vertices of this rank's block, by their owners' order."""
        order, counts = by_owner(vertices, self.blocks)
        first = sum(counts[: self.over.index])
        if vertices.is_meta:
            return vertices[: counts[self.over.index]]
        return vertices[order[first : first + counts[self.over.index]]]


class Coming(NamedTuple):
    """Rows that are under way."""

    store: FetchingStore
    look: Look
    order: Tensor
    """The order in which the rows were named."""
    requests: Requests
    arrives: Pending[Tensor]

    def wait(self) -> Tensor:
        """All rows that were asked for, in that order; the cache takes those that are new to it."""
        store, look = self.store, self.look
        with store.ctx.ledger.phase(Phase.FETCH):
            arrived = self.arrives.wait()
            device = arrived.device
            with store.over.ledger.op(Op.COPY, tensor=TensorName.X):
                mine = store.X_NF.index_select(0, self.requests.own)
                kept = store.X_SF.index_select(0, look.slots.to(device))
                rows = torch.cat([*self.requests.in_order(arrived, mine), kept])
                back = inverse(self.order)
                place = back.new_empty(len(look.lacking) + len(look.found))
                place[look.lacking] = back[: len(look.lacking)]
                place[look.found] = torch.arange(len(look.found), device=back.device) + len(back)
                newcomers = rows.index_select(0, back[look.newcomers].to(device))
                store.X_SF.index_copy_(0, look.freed.to(device), newcomers)
                return rows.index_select(0, place.to(device))
