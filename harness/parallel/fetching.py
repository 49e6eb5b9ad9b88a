"""Mini-batches of the rank that trains on them, with features that others have: who holds what, and what is said.

Features are in block rows over an axis; labels to train on are on every rank. How batches are drawn, and what of the
graph is held for it, is the strategy's business. Operators are in `harness.parallel.fetching_operators`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels import Csr, block, cast
from harness.ledger import Direction, Op, TensorName
from harness.parallel.asking import inside
from harness.parallel.cache import Cache, NoCache, Static, elsewhere, top
from harness.parallel.inclusion import Stripe
from harness.parallel.minibatches import BatchStrategy
from harness.strategy import (
    LONG,
    WORD,
    Coordinates,
    Counts,
    Piece,
    Words,
    label_bytes,
)
from harness.strategy.sizes import LABELS

FORWARD = Direction.FORWARD


class Sizes(NamedTuple):
    """Of a cache: rows, and what it keeps besides them, in units of eight bytes."""

    rows: int = 0
    besides: int = 0


class FetchingStrategy(BatchStrategy):
    """A mini-batch a rank, its features fetched over the axis `rows_over`."""

    models = ("gcn", "sage")

    @property
    def ahead(self) -> bool:
        """Whether the features of a mini-batch are under way while the one before it is trained on."""
        return False

    @property
    def kept(self) -> float:
        """Rows of others that a rank keeps, as a share of the rows that each had if all had as many."""
        return 0.0

    @abstractmethod
    def held(self, at: Coordinates) -> range:
        """The rows of A that the rank at `at` has."""

    @abstractmethod
    def peers(self, at: Coordinates) -> list[int]:
        """The groups of all ranks that this one gets features from, itself included, block row by block row."""

    def worth(self, group: int, graph: Stripe, targets: Tensor) -> Tensor:
        """How much it is worth to the rank of a group to keep the row of a vertex."""
        raise NotImplementedError(f"{self.name} keeps no rows of others")

    def cache(self, group: int, member: int, graph: Stripe, targets: Tensor) -> Cache:
        """What the rank of a group, who has a block row, keeps of the others."""
        if not self.kept:
            return NoCache()
        own, n = self.blocks()[member], self.facts.vertices
        others = elsewhere(own, n)
        worth = self.worth(group, graph, targets)[others]
        return Static(top(worth, others, self.slots(own)), n)

    def slots(self, own: range) -> int:
        """Rows that the rank of these keeps."""
        n = self.facts.vertices
        return min(round(self.kept * n / self.grid[self.rows_over]), n - len(own))

    def cache_sizes(self, at: Coordinates, counts: Counts) -> Sizes:
        return Sizes(self.slots(self.rows(at)), self.facts.vertices) if self.kept else Sizes()

    def graph(self, counts: Counts) -> tuple[Csr, Tensor]:
        """A as a run has it, and the targets."""
        return cast(counts.whole(), getattr(torch, self.spec.precision)), counts.targets(self.spec.protocol)

    def say_sampling(self, words: Words, at: Coordinates, A: Csr, targets: Tensor, epoch: int) -> None:
        """Nothing, where the graph is on every rank."""

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """What sampling says; features that a rank has neither in its block row nor in its cache; gradients."""
        words, over, (A, targets) = Words(self.grid), self.rows_over, self.graph(counts)
        for wanted, asked in self.fetched(at, A, targets, epoch):
            words.put(FORWARD, -1, Op.ALL_TO_ALL, over, TensorName.COUNT, self.grid[over])
            words.put(FORWARD, -1, Op.ALL_TO_ALL, over, TensorName.INDEX, asked)
            words.put(FORWARD, -1, Op.ALL_TO_ALL, over, TensorName.X, wanted * self.facts.features)
        self.say_sampling(words, at, A, targets, epoch)
        self.say_training(words)
        return words

    def fetched(self, at: Coordinates, A: Csr, targets: Tensor, epoch: int) -> Iterator[tuple[int, int]]:
        """Step by step, vertices whose features the rank at `at` fetches, and those that others ask it for."""
        own, here = self.rows(at), at[self.rows_over]
        peers, everyone = self.peers(at), range(A.cols)
        caches = [
            self.cache(group, member, lambda rows: block(A, rows, everyone), targets)
            for member, group in enumerate(peers)
        ]
        first, last = epoch * self.steps, (epoch + 1) * self.steps
        for step in range(0 if caches[0].learns else first, last):
            wanted = asked = 0
            for member, group in enumerate(peers):
                named = caches[member].look(self.mini_batch(step, group, A, targets).vertices[0]).named
                owned = int(inside(named, own).sum())
                wanted += len(named) - owned if member == here else 0
                asked += owned if member != here else 0
            if step >= first:
                yield wanted, asked

    def multiplied(self, at: Coordinates) -> list[Piece]:
        return [Piece(self.held(at), range(self.facts.vertices))]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """What is held of the graph, a block row of features, what is kept of others; labels of all, to train on."""
        everyone, task = Piece(range(self.facts.vertices), range(self.facts.classes)), self.facts.task
        held, kept = super().memory(at, counts), self.cache_sizes(at, counts)
        held[TensorName.LABELS] += label_bytes(everyone, task) // LABELS
        held[TensorName.X] += WORD[self.spec.precision] * kept.rows * self.facts.features
        return {**held, TensorName.INDEX: LONG * kept.besides}
