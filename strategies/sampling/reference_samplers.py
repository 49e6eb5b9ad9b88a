"""The samples of the systems as their papers describe them, for `harness check` (`harness.strategy.ReferenceSampler`).

Nothing here is called in a run, and nothing is shared with the samplers that are.

Legend: n vertices; S the vertices of a mini-batch.
"""

from abc import abstractmethod

import numpy as np

from harness.strategy import DenseBatch, ReferenceSampler
from harness.strategy.reference_sampler import Array


class LayerByLayer(ReferenceSampler):
    """Draws some targets, the input of the last layer, of the one before, and so on."""

    def draw_layers(self, targets: Array) -> DenseBatch:
        vertices, matrices = [self.make_mask(targets)], list[Array]()
        for hop in range(self.layers):
            outputs = vertices[0]
            factors = self.draw_factors(outputs, hop) * (self.entries & outputs[:, None])
            matrices.insert(0, self.A * factors)
            vertices.insert(0, outputs | (factors != 0).any(axis=0))
        return DenseBatch(vertices, matrices)

    @abstractmethod
    def draw_factors(self, outputs: Array, hop: int) -> Array:
        """Draw the factors of A's entries in a layer, given the vertices of its output; 0 for one that is not drawn."""

    def draw_neighbours(self, fanout: int, candidates: Array) -> Array:
        """Keep all other entries of each row, and `fanout` of its candidates, scaled by their number over `fanout`."""
        number = candidates.sum(axis=1)
        order = (
            np.where(candidates, self.rng.random(candidates.shape), np.inf).argsort(axis=1).argsort(axis=1)
        )
        scale = np.where(order < fanout, np.maximum(number / fanout, 1)[:, None], 0)
        return np.where(candidates, scale, 1)


class NeighbourReference(LayerByLayer):
    """Neighbours of each vertex, without replacement, and its self-loop."""

    def draw_epoch(self) -> list[list[DenseBatch]]:
        """Deal the shuffled targets evenly to groups and steps; or to the steps of each group, which has its own."""
        steps = max(1, -(-len(self.targets) // (self.batch * self.groups)))
        if getattr(self.params, "own", False):
            of_groups = np.array_split(self.targets, self.groups)
            shares = [np.array_split(self.rng.permutation(own), steps) for own in of_groups]
            return [[self.draw_layers(share[step]) for share in shares] for step in range(steps)]
        mixed = np.array_split(self.rng.permutation(self.targets), steps * self.groups)
        return [
            [self.draw_layers(share) for share in mixed[step * self.groups : (step + 1) * self.groups]]
            for step in range(steps)
        ]

    def draw_factors(self, outputs: Array, hop: int) -> Array:
        fanouts = getattr(self.params, "fanouts", None) or (self.params.fanout,)
        return self.draw_neighbours(
            fanouts[min(hop, len(fanouts) - 1)], self.entries & ~np.eye(self.n, dtype=bool)
        )


class BulkReference(LayerByLayer):
    """The samples of Algorithm 1: shuffled targets in batches of `training.batch`, the last of which may be short."""

    def draw_epoch(self) -> list[list[DenseBatch]]:
        order, size = self.rng.permutation(self.targets), self.batch
        batches = [order[first : first + size] for first in range(0, len(order), size)]
        steps = max(1, -(-len(batches) // self.groups))
        batches += [order[:0]] * (steps * self.groups - len(batches))
        return [
            [self.draw_layers(batch) for batch in batches[step * self.groups : (step + 1) * self.groups]]
            for step in range(steps)
        ]


class BulkSageReference(BulkReference):
    """Entries of each vertex's row, without replacement."""

    def draw_factors(self, outputs: Array, hop: int) -> Array:
        fanouts = self.params.fanouts
        return self.draw_neighbours(fanouts[min(hop, len(fanouts) - 1)], self.entries)


class LadiesReference(BulkReference):
    """Columns of all rows together, by their masses."""

    def draw_factors(self, outputs: Array, hop: int) -> Array:
        """Return the number of draws of each column over their expectation."""
        size = self.params.size
        if self.params.distribution == "counts":
            mass = (self.entries & outputs[:, None]).sum(axis=0) ** 2.0
        else:
            mass = (self.A**2 * outputs[:, None]).sum(axis=0)
        if not mass.any() or (not self.params.replacement and (mass > 0).sum() <= size):
            return np.ones_like(self.A)
        p = mass / mass.sum()
        if self.params.replacement:
            drawn = self.rng.multinomial(size, p)
        else:
            drawn = self.make_mask(self.rng.choice(self.n, size, replace=False, p=p))
        return np.broadcast_to(drawn / np.where(p > 0, size * p, 1), self.A.shape)


class NodeReference(ReferenceSampler):
    """GraphSAINT's vertices, drawn with replacement by the squared norms of their columns, and all edges between them.

    An entry is divided by the probability of its column, given its row; a vertex's loss by its own probability.
    """

    def draw_epoch(self) -> list[list[DenseBatch]]:
        steps = -(-self.n // (self.batch * self.groups))
        return [[self.draw_batch() for _ in range(self.groups)] for _ in range(steps)]

    def draw_batch(self) -> DenseBatch:
        q, B = (self.A**2).sum(axis=0) / (self.A**2).sum(), self.batch
        p = 1 - (1 - q) ** B
        S = np.flatnonzero(self.rng.multinomial(B, q))
        both = p[S][:, None] + p[S] - (1 - (1 - np.add.outer(q[S], q[S])) ** B)
        np.fill_diagonal(both, p[S])
        importance = p.mean() / p
        return self.make_subgraph(S, self.A[np.ix_(S, S)] * p[S][:, None] / both, importance)


class ClusterReference(ReferenceSampler):
    """Some of a rank's clusters, all edges between them, and weights by the degrees that are left.

    All ranks join clusters of the same numbers.
    """

    def draw_epoch(self) -> list[list[DenseBatch]]:
        each, clusters = self.params.clusters, self.strategy.clusters
        joined = max(1, round(self.batch * len(clusters) / self.n))
        order = self.rng.permutation(each)
        return [
            [
                self.join([clusters[group * each + number] for number in order[first : first + joined]])
                for group in range(self.groups)
            ]
            for first in range(0, each, joined)
        ]

    def join(self, clusters: list[range]) -> DenseBatch:
        S = np.sort(np.concatenate([np.arange(span.start, span.stop) for span in clusters]))
        entries = self.entries[np.ix_(S, S)].astype(float)
        if self.strategy.spec.model.kind == "sage":
            np.fill_diagonal(entries, 0)
            return self.make_subgraph(S, entries / np.maximum(entries.sum(axis=1, keepdims=True), 1))
        degree = entries.sum(axis=1)
        return self.make_subgraph(S, entries / np.sqrt(np.outer(degree, degree)))
