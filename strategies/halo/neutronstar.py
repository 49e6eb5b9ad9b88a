"""NeutronStar-style training (Wang et al., SIGMOD'22): a row of another part is fetched, or computed here as well.

For every layer and every vertex at its boundary a part compares what it costs to fetch its row, epoch after epoch, with
what it costs to compute it, with all that this takes down to features, which are copied once. Both are exact. What is
computed twice is differentiated twice, each copy for the losses that came of it, and gradients add up. It is not the
authors' code: costs are counted in flops and words, where theirs are probed on the machine.

Legend as in `rows`, but that N are the vertices whose rows are here: this rank's own, then replicas of others. A layer
has rows of H at N and makes rows at N', which are the first of them.
"""

from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor

from harness.comm.call import Landed, Pending
from harness.kernels import Csr, transpose
from harness.kernels.gather import scatter_matrix
from harness.kernels.parts import beside, select_columns, select_rows
from harness.ledger import TensorName
from harness.models import Part as WeightPart
from harness.parallel.halo import Boundary, Halo
from harness.parallel.row_attention import Edges, edges_of
from harness.strategy import LONG, WORD, Context, Coordinates, Counts, Promise, csr_bytes, turned_bytes
from harness.validation import Frozen
from strategies.halo.attention import AttendingRows, Neighbours
from strategies.halo.dependencies import Choice, Prices, arriving, choices, leaving
from strategies.halo.rows import P, Part, PartRows, PartScheme


class NeutronStar(PartScheme):
    """Fetched or computed, by cost; for any number of parts up to the number of vertices."""

    name = "neutronstar"
    promise = Promise.EXACT
    models = ("gcn", "sage", "gat")

    class Params(Frozen):
        """Of the choice."""

        flops_per_word: float = Field(100.0, ge=0, examples=[0.0, 30.0, 1e9])
        """What a rank computes while one word comes to it; with 0 all rows are fetched."""
        replicas: float | None = Field(None, ge=0, examples=[0.4])
        """Most vertices of others whose features a rank keeps, as a share of its own; None for any number."""
        overlap: bool = False
        """A rank multiplies by the rows that it has while those of others are under way."""

    params: Params

    @property
    def overlaps(self) -> bool:
        return self.params.overlap

    def operators(self, ctx: Context) -> "HybridRows":
        return (HybridAttention if self.spec.model.kind == "gat" else HybridRows)(ctx, self)

    def choices(self, A: Csr) -> list[Choice]:
        """Of every part. Features that are trained change all the time, and are never copied."""
        share = 0.0 if self.spec.training.features else self.params.replicas
        return choices(A, self.blocks(), self.prices(), share)

    def prices(self) -> Prices:
        """In flops of the way forward; the way back takes about as much again of both."""
        layers = range(len(self.shapes))
        sent = [self.width(layer) for layer in layers]
        taken = [f_out for _, f_out in self.shapes] if self.spec.model.kind == "gat" else sent
        return Prices(
            worth=[self.params.flops_per_word * width for width in sent],
            vertex=[2.0 * self._trained_below(layer) for layer in layers],
            entry=[2.0 * sum(taken[:layer]) for layer in layers],
        )

    def _trained_below(self, layer: int) -> int:
        """Elements of the weights that a row has been multiplied by when the layer aggregates it."""
        last = layer if self.combine_first else layer - 1
        below = [each for each in self.weights if each.layer <= last and each.part is not WeightPart.HEAD]
        return sum(rows * cols for _, _, (rows, cols) in below)

    def travelling(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        made, own = self.choices(boundary.counts.whole()), boundary.blocks[boundary.own]
        return [
            (len(fetched), sum(map(len, leaving(made, layer, own))))
            for layer, fetched in enumerate(made[boundary.own].fetched)
        ]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Features of replicas too; matrices, which layers with the same replicas share; what leaves in each layer."""
        A, rows, precision = counts.whole(), self.rows(at), self.spec.precision
        choice, lengths = self.choices(A)[at[P]], A.rowptr.diff()
        own = int(lengths[rows.start : rows.stop].sum())
        held, matrices = super().memory(at, counts), {}
        held[TensorName.X] += WORD[precision] * len(choice.replicas) * self.facts.features
        held[TensorName.INDEX] = LONG * len(choice.replicas)
        for layer, (come, leave) in enumerate(self.travelling(self.boundary(at, counts), 0)):
            there, made = (len(rows) + size for size in choice.sizes[layer : layer + 2])
            nonzeros = own + int(lengths[choice.at(layer + 1)].sum())
            if self.spec.model.kind == "gat":
                sizes = csr_bytes(made, nonzeros, precision), turned_bytes(there + come, nonzeros)
            else:
                sides = [(made, nonzeros), (made, 0), (there, nonzeros), (come, 0)]
                sizes = (csr_bytes(*side, precision) for side in sides)
            matrices[there, made] = sum(sizes)
            held[TensorName.INDEX] += LONG * leave + csr_bytes(there, leave, precision)
        return {**held, TensorName.A: sum(matrices.values())}


class HybridRows(PartRows):
    """One rank's own rows, and those of others that it computes."""

    strategy: NeutronStar
    Part: type[Part | Neighbours] = Part

    def __init__(self, ctx: Context, strategy: NeutronStar) -> None:
        self.A = ctx.blocks.counts.whole()
        self.choices = strategy.choices(self.A)
        self.choice = self.choices[ctx.at[P]]
        super().__init__(ctx, strategy, beyond=self.choice.replicas)
        self.replicas = ctx.memory.hold(TensorName.INDEX, self.choice.replicas)

    def cut(self) -> list[Part]:
        """Layers with the same replicas share their matrices. All of A, and what others chose, is let go."""
        ends = list(pairwise(self.choice.sizes))
        matrices = {each: self.matrices(ends.index(each)) for each in dict.fromkeys(ends)}
        parts = [self.Part(*matrices[each], *self.halo(layer)) for layer, each in enumerate(ends)]
        self.travels = [
            any(len(choice.fetched[layer]) for choice in self.choices) for layer in range(len(ends))
        ]
        """Whether anybody fetches anything for a layer: else nobody calls."""
        del self.A, self.choices
        return parts

    def matrices(self, layer: int) -> list[Csr]:
        """What a layer multiplies by at rows that are here, and at those that are fetched; each with its transpose."""
        return [
            self.ctx.memory.hold_matrix(each)
            for side in self.sides(layer)
            for each in (side, transpose(side))
        ]

    def sides(self, layer: int) -> list[Csr]:
        """A of the rows that a layer makes, at rows that are here and at those that are fetched."""
        A = select_rows(self.A, self.vertices_at(layer + 1))
        return [select_columns(A, cols) for cols in (self.vertices_at(layer), self.choice.fetched[layer])]

    def halo(self, layer: int) -> tuple[Halo, Csr]:
        """Who needs which rows of whom for a layer; and what adds up the gradients that come back."""
        ctx, blocks = self.ctx, self.strategy.blocks()
        sent = leaving(self.choices, layer, blocks[ctx.at[P]])
        halo = Halo(
            ctx.memory.hold(TensorName.INDEX, torch.cat(sent)),
            list(map(len, sent)),
            arriving(self.choice, layer, blocks),
        )
        S_NM = scatter_matrix(halo.leaving, len(self.vertices_at(layer)), ctx.dtype)
        return halo, ctx.memory.hold_matrix(S_NM, TensorName.INDEX)

    def vertices_at(self, layer: int) -> Tensor:
        """Those whose rows are here at the input of a layer."""
        return torch.cat([torch.arange(self.rows.start, self.rows.stop), self.choice.at(layer)])

    def rows_of(self, layer: int) -> Tensor:
        return torch.cat([super().rows_of(layer), self.replicas[: self.choice.sizes[layer + 1]]])

    def fetch(self, halo: Halo, layer: int, H_NF: Tensor) -> Pending[Tensor]:
        return super().fetch(halo, layer, H_NF) if self.travels[layer] else Landed(H_NF[:0])

    def give_back(self, halo: Halo, layer: int, dH_KF: Tensor) -> Pending[Tensor]:
        return super().give_back(halo, layer, dH_KF) if self.travels[layer] else Landed(dH_KF)


class HybridAttention(HybridRows, AttendingRows):
    """The same with attention."""

    Part = Neighbours

    def matrices(self, layer: int) -> list[Edges]:
        """Of whom a layer takes: rows that are here, and those that are fetched."""
        return [edges_of(beside(self.sides(layer)), self.ctx.memory.hold_matrix)]
