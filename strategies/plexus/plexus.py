"""Plexus: full-graph training on a grid of X x Y x Z (section 3 of its paper), with all of its section 5.

Every matrix is split over two of the three axes, and is the same along the third. Which axis does what is said by the
roles R, S and T, which rotate from layer to layer (`harness.parallel.roles`). What is trained, W and perhaps the input
features, is split over the third axis too, so that no two ranks train the same number.

Legend: N vertices over R, K vertices over S, F features in over T, H features out over S, C classes as H.
The paper's A, F, H, W, Q are our A, H, T, W, Z: T = A H, Z = T W. G = dL/dZ, dT = G W^T, dW = T^T G, dH = A^T dT.

Where it differs: blocks are not padded, W and features are cut at rows and not at any number, and the loss sends two
numbers a row and not three (`harness.parallel.label_loss`).
"""

from functools import partial
from itertools import product
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.models import Weight
from harness.parallel.products import (
    WEIGHT_GRADIENTS,
    Gradient,
    Plane,
    Sparse,
    Striping,
    aggregate,
    combine,
    cut_out,
)
from harness.parallel.roles import Roles, Share, piece_of, roles_of, share_of
from harness.parallel.rows import RowOperators
from harness.ranges import balanced, common
from harness.strategy import (
    WORD,
    Context,
    Coordinates,
    Counts,
    Piece,
    Promise,
    Published,
    Quantity,
    Strategy,
    Words,
    csr_bytes,
    label_bytes,
)
from harness.validation import Frozen
from strategies.plexus.formulas import Terms, terms_of_the_code, words_of_the_authors

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
FIRST = Roles(R=Z, S=X, T=Y)
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class PlexusParams(Frozen):
    """The first choice is the paper's, without its optimisations."""

    aggregation: Literal["whole", "blocked", "overlapped"] = "whole"
    """A product with A at once; or in blocks of rows; or with the sum of a block under way while the next one is
    multiplied (section 5.2)."""
    blocks: int = Field(4, ge=1)
    """The blocks of rows, where there are any."""
    weight_gradient: Literal["straight", "flipped", "measured"] = "straight"
    """dW = T^T G, or (G^T T)^T (section 5.3); or whichever each rank finds quicker on its device, layer by layer."""
    loops: Literal["in_A", "apart"] = "in_A"
    """The loops of the graph among the nonzeros of A; or as a scaled sum of rows, which balances A under a single
    permutation (not in the paper)."""


class Layer(NamedTuple):
    """What one rank needs of a layer."""

    A_NK: Sparse
    A_T_KN: Sparse | None
    plane: Plane
    weight_rows: list[int]
    """How many of its rows each member of R has."""
    gradient: Gradient
    """How dW is multiplied."""


class Rotating(RowOperators):
    """One rank's operators: products over the three roles, layer by layer."""

    def __init__(self, ctx: Context, strategy: "Plexus") -> None:
        shares = strategy.shares(ctx.at)
        last = shares[-1].roles
        super().__init__(ctx, strategy, over=(last.R,), across=last.S)
        self.params, self.trains_features = strategy.params, ctx.spec.training.features
        self.layers = [self._layer(ctx, strategy, number, share) for number, share in enumerate(shares)]
        K, R = shares[0].K, ctx.grid[shares[0].roles.R]
        self.feature_rows = [len(rows) for rows in balanced(len(K), R.size)]

    def _layer(self, ctx: Context, strategy: "Plexus", layer: int, share: Share) -> Layer:
        R, S, T = (ctx.grid[axis] for axis in share.roles)
        A_NK = cut_out(
            ctx, Piece(share.N, share.K), layer, transposed=False, over=S, striping=strategy.striping
        )
        A_T_KN = None
        if strategy.wants_dH(layer):
            over = R if layer > 0 else None
            A_T_KN = cut_out(
                ctx, Piece(share.K, share.N), layer, transposed=True, over=over, striping=strategy.striping
            )
        weight_rows = [len(rows) for rows in balanced(len(share.F), R.size)]
        way = self.params.weight_gradient
        if way == "measured":
            T_NF, G_NH = (ctx.memory.zeros(len(share.N), len(part)) for part in (share.F, share.H))
            ways = {name: partial(gradient, T_NF, G_NH) for name, gradient in WEIGHT_GRADIENTS.items()}
            way = ctx.measured.choose(f"weight_gradient of layer {layer}", ways)
        return Layer(A_NK, A_T_KN, Plane(R, T, S), weight_rows, WEIGHT_GRADIENTS[way])

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Algorithms 1 and 2: T = A H summed over S, Z = T W summed over T; backward dT over S, dH over R."""
        A_NK, A_T_KN, plane, weight_rows, gradient = self.layers[layer]
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if layer == 0 and self.trains_features:
                X, dX = TensorName.X, TensorName.DX
                H = plane.rows.gather(H, sizes=self.feature_rows, tensor=X, gradient=dX)
            T_NF = aggregate(self.kernels, A_NK, A_T_KN, H)
            return combine(self.kernels, T_NF, W, plane, weight_rows, gradient)


class Plexus(Strategy):
    """The three-dimensional algorithm, on any grid."""

    name = "plexus"
    promise = Promise.EXACT
    axes: ClassVar[tuple[AxisName, ...]] = (X, Y, Z)
    slowest_first = (Z, X, Y)
    """Y inside a node first, then X (section 4.2)."""
    Params = PlexusParams
    params: PlexusParams

    def refuse(self) -> str | None:
        if self.spec.model.order == "combine_first":
            return "its roles rotate with (A H) W and not with A (H W): use order aggregate_first"
        if self.params.loops == "apart" and self.spec.dataset.permutation == "double":
            return "a double permutation leaves no loops on the diagonal to take apart: use single, or loops in_A"
        return self.crowded()

    @property
    def striping(self) -> Striping:
        """How blocks of A are multiplied."""
        way = self.params.aggregation
        stripes = 1 if way == "whole" else self.params.blocks
        return Striping(stripes, overlap=way == "overlapped", loops_apart=self.params.loops == "apart")

    def shares(self, at: Coordinates) -> list[Share]:
        """What the rank at `at` has of every layer."""
        return [
            share_of(roles_of(layer, FIRST), self.grid, at, self.facts.vertices, shape)
            for layer, shape in enumerate(self.shapes)
        ]

    def weight(self, weight: Weight, at: Coordinates) -> Piece:
        share = self.shares(at)[weight.layer]
        R = share.roles.R
        return Piece(piece_of(share.F, self.grid[R], at[R]), share.H)

    def input(self, at: Coordinates) -> Piece:
        """Where features are trained they are split over R too; else every member of R has them."""
        roles, _, K, F, _ = self.shares(at)[0]
        trained = self.spec.training.features
        return Piece(piece_of(K, self.grid[roles.R], at[roles.R]) if trained else K, F)

    def output(self, at: Coordinates) -> Piece:
        last = self.shares(at)[-1]
        return Piece(last.N, last.H)

    def operators(self, ctx: Context) -> Rotating:
        return Rotating(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Every block of a product that is summed or gathered, once; W and features twice."""
        words, trained = Words(self.grid), self.spec.training.features
        for layer, (roles, *ranges) in enumerate(self.shares(at)):
            (R, S, T), (N, K, F, H) = roles, map(len, ranges)
            if layer == 0 and trained:
                words.put(FORWARD, layer, Op.ALL_GATHER, R, TensorName.X, K * F)
            words.put(FORWARD, layer, Op.ALL_REDUCE, S, TensorName.T, N * F)
            words.put(FORWARD, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
            words.put(FORWARD, layer, Op.ALL_REDUCE, T, TensorName.Z, N * H)
            words.put(BACKWARD, layer, Op.REDUCE_SCATTER, R, TensorName.DW, F * H)
            if self.wants_dH(layer):
                words.put(BACKWARD, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
                words.put(BACKWARD, layer, Op.ALL_REDUCE, S, TensorName.DT, N * F)
            if layer > 0:
                words.put(BACKWARD, layer, Op.ALL_REDUCE, R, TensorName.DH, K * F)
            elif trained:
                words.put(BACKWARD, layer, Op.REDUCE_SCATTER, R, TensorName.DX, K * F)
        if self.facts.task == "single-label":
            words.put(FORWARD, -1, Op.ALL_REDUCE, S, TensorName.Z, 2 * N)
        words.put(FORWARD, -1, Op.ALL_REDUCE, (R, S), TensorName.LOSS, 1)
        return words

    def product_terms(self) -> Terms:
        """Section 4.1, as the authors' code has it."""
        dense = [d for d, _ in self.shapes]
        return terms_of_the_code(self.grid, FIRST, self.facts.vertices, self.facts.nonzeros, dense)

    def published(self) -> list[Published]:
        """The words of the authors' code, which trains the features too; the blocks of A by section 5.1."""
        paper = []
        if self.spec.training.features:
            theirs = words_of_the_authors(self.grid, FIRST, self.facts.vertices, self.shapes)
            paper.append(
                Published(
                    Quantity.WORDS,
                    "sum of the padded blocks that are summed or gathered",
                    (),
                    sum(theirs.values()),
                    "blocks are not padded, W is always split over R, and the loss sends two words a row, not three",
                )
            )
        paper.append(
            Published(
                Quantity.LAYOUT,
                "blocks of A on a rank: min(6, L) under a double permutation, else min(3, L)",
                ("PLX-063", "PLX-064", "PLX-065"),
                min(6 if self.spec.dataset.permutation == "double" else 3, self.spec.model.layers),
                "on axes of one rank blocks coincide",
                max(len(self._blocks_of_A(at)) for at in self._corners()),
            )
        )
        return paper

    def _corners(self) -> list[Coordinates]:
        """The ranks at the ends of every axis: on one of them no two blocks are the same without need."""
        ends = product(*({0, size - 1} for size in self.grid.values()))
        return [dict(zip(self.grid, corner, strict=True)) for corner in ends]

    def _blocks_of_A(self, at: Coordinates) -> set[tuple[range, range, int]]:
        return {(N, K, self._order(layer)) for layer, (_, N, K, *_) in enumerate(self.shares(at))}

    def _order(self, layer: int) -> int:
        """The order of the vertices in which a layer multiplies."""
        return layer % 2 if self.spec.dataset.permutation == "double" else 0

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Every block of A and of A^T that a layer multiplies by, once; the rest is split over all ranks."""
        word, shares = WORD[self.spec.precision], self.shares(at)
        weights = [self.weight(weight, at) for weight in self.weights]
        features = self.input(at)
        return {
            TensorName.A: sum(self._bytes(*block, counts) for block in self._held(shares)),
            TensorName.X: word * len(features.rows) * len(features.cols),
            TensorName.W: word * sum(len(rows) * len(cols) for rows, cols in weights),
            TensorName.LABELS: label_bytes(self.output(at), self.facts.task),
        }

    def _held(self, shares: list[Share]) -> set[tuple[range, range, int, bool]]:
        """The distinct blocks: rows, columns, order, and whether of A^T. Undirected, A^T is A of the other order."""
        held: set[tuple[range, range, int, bool]] = set()
        turned, double = self.facts.directed, self.spec.dataset.permutation == "double"
        for layer, (_, N, K, _, _) in enumerate(shares):
            order = self._order(layer)
            held |= {(rows, K, order, False) for rows in self.striping.of(N)}
            if self.wants_dH(layer):
                other = 1 - order if double and not turned else order
                held |= {(rows, N, other, turned) for rows in self.striping.of(K)}
        return held

    def _bytes(self, rows: range, cols: range, order: int, transposed: bool, counts: Counts) -> int:
        nonzeros = counts.nonzeros(rows, cols, transposed=transposed, order=order)
        loops = len(common(rows, cols)) if self.params.loops == "apart" else 0
        precision = self.spec.precision
        return csr_bytes(len(rows), nonzeros - loops, precision) + loops * WORD[precision]
