"""AdaQP's messages are unbiased and take fewer bytes, and its training equals dense training on the rounded rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.conformance.batches import check_unbiased_messages
from harness.conformance.case import Case, RankResult, train_rank
from harness.conformance.checks import ScipyCounts
from harness.conformance.reference import dense_matrix
from harness.graph.model import TRAIN, has_label
from harness.kernels.random import Purpose, uniform_rectangle
from harness.ledger import TensorName
from harness.strategies.halo.adaqp import AdaQP, dequantize, quantize
from harness.strategy.models.weights import init_weight
from tests.cases import DOUBLE, in_parts, make_case

PARTS, LAYERS, HIDDEN = 3, 3, 10


def make_adaqp_case(name: str = "adaqp", **params: object) -> Case:
    model = {"layers": LAYERS, "hidden": HIDDEN, "order": "aggregate_first"}
    return make_case(name, {"p": PARTS}, params, dataset=in_parts(PARTS), model=model, vertices=97, **DOUBLE)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("width", [1, 3, 8, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_error_is_below_a_step_and_constant_rows_are_exact(
    bits: int, width: int, dtype: torch.dtype
) -> None:
    x = uniform_rectangle(3, Purpose.TEST, range(20), range(width), width).to(dtype) * 8 - 4
    x[0] = 1.5
    message = quantize(x, bits, (7,))
    arrived = dequantize(message, bits, width, dtype)
    step = (x.amax(dim=1) - x.amin(dim=1)) / (2**bits - 1)
    assert message.shape == (20, 2 * dtype.itemsize + -(-width * bits // 8)) and message.dtype == torch.uint8
    assert ((arrived - x).abs() <= step[:, None] * (1 + 1e-5) + 1e-6).all()
    assert torch.equal(arrived[0], x[0])
    assert (
        len(
            set(((arrived - x.amin(dim=1, keepdim=True)) / step.clamp(min=1e-9)[:, None]).round()[1].tolist())
        )
        <= 2**bits
    )


def test_empty_message_has_no_bytes() -> None:
    message = quantize(torch.empty(0, 5), 2, (1,))
    assert dequantize(message, 2, 5, torch.float32).shape == (0, 5)


def test_variance_is_proportional_to_the_squared_step() -> None:
    """Proportional to 1 / (2^b - 1)^2: 25 times smaller with 4 bits than with 2, 289 times with 8 than with 4."""
    x = uniform_rectangle(3, Purpose.TEST, range(200), range(64), 64)
    errors = [
        float((dequantize(quantize(x, bits, (bits,)), bits, 64, torch.float64) - x).square().mean())
        for bits in (2, 4, 8)
    ]
    assert errors[0] / errors[1] == pytest.approx(25, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(289, rel=0.05)


def trained(ranks, case: Case) -> list[RankResult]:
    done: list[RankResult] = ranks(PARTS, train_rank, case, 1)
    return done


def dense_loss(case: Case, bits: int) -> float:
    """Return the loss of the first step by dense matrices, with the received rows of other parts."""
    strategy, store = case.strategy(), case.store()
    assert isinstance(strategy, AdaQP)
    A, everyone, blocks = dense_matrix(store), range(store.n), strategy.blocks()
    H = store.feature_block(everyone, range(store.features)).double()
    weights = [
        init_weight(case.spec.seed, i, w, *map(range, w.shape)) for i, w in enumerate(strategy.weights)
    ]
    for layer, W in enumerate(weights):
        parts = []
        sent = [
            rows_that_leave(A, blocks, H, owner, (case.spec.seed, 0, layer, 0, owner, bits), bits)
            for owner in range(PARTS)
        ]
        for own, rows in enumerate(blocks):
            seen = torch.zeros_like(H)
            seen[rows.start : rows.stop] = H[rows.start : rows.stop]
            for owner in range(PARTS):
                if owner != own:
                    places, arrived = sent[owner][own]
                    seen[places] = arrived
            parts.append(A[rows.start : rows.stop] @ (seen @ W))
        H = torch.cat(parts)
        H = H.relu() if layer + 1 < LAYERS else H
    labels, split = store.labels(everyone), store.split(everyone)
    counted = has_label(labels) & (split == TRAIN)
    return float(torch.nn.functional.cross_entropy(H[counted], labels[counted]))


def rows_that_leave(
    A: Tensor, blocks: list[range], H: Tensor, owner: int, seed: tuple[int, ...], bits: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return, for each other part, the vertices that it needs from one part, and their received rows."""
    cols = blocks[owner]
    needed = {}
    for other, rows in enumerate(blocks):
        if other != owner:
            block = A[rows.start : rows.stop, cols.start : cols.stop]
            needed[other] = (block != 0).any(dim=0).nonzero()[:, 0] + cols.start
    whole = dequantize(quantize(H[torch.cat(list(needed.values()))], bits, seed), bits, H.shape[1], H.dtype)
    arrived = whole.split([len(places) for places in needed.values()])
    return {other: (places, rows) for (other, places), rows in zip(needed.items(), arrived, strict=True)}


@pytest.mark.parametrize("bits", [2, 8])
def test_step_equals_dense_step_on_the_received_rows(ranks, bits: int) -> None:
    case = make_adaqp_case(bits=bits)
    for rank in trained(ranks, case):
        assert rank.losses[0] == pytest.approx(dense_loss(case, bits), rel=1e-12)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_words_equal_the_full_boundary_and_bytes_follow_the_bits(ranks, bits: int) -> None:
    case = make_adaqp_case(bits=bits)
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    full = make_adaqp_case("bns-gcn", precompute=False).strategy()
    for number, rank in enumerate(trained(ranks, case)):
        assert strategy.words(rank.at, counts) == full.words(strategy.coordinates(number), counts)
        for key, sent in rank.sent.items():
            if key.tensor in (TensorName.H, TensorName.DH):
                width = strategy.shapes[key.layer][0]
                messages = sent.words / width
                assert sent.bytes == messages * (16 + -(-width * bits // 8))


def test_sender_and_receiver_agree_on_the_bit_width() -> None:
    strategy = make_adaqp_case(bits="random").strategy()
    assert isinstance(strategy, AdaQP)
    for rows in (0, 1, 2, 7, 30):
        assigned = strategy.draw_widths((0, 1), rows)
        assert sorted(torch.cat(assigned).tolist()) == list(range(rows))
        assert max(map(len, assigned)) - min(map(len, assigned)) <= 1


Received = tuple[Tensor, Tensor]
Mistake = Callable[[Tensor, Tensor, Tensor], Received]


def rounded_down(x: Tensor, _: Tensor, bound: Tensor) -> Received:
    """Messages that are always rounded down, without variance."""
    steps, low = 2 * bound.sqrt(), x.amin(dim=1, keepdim=True)
    whole = ((x - low) / steps.clamp(min=1e-30) + 1e-9).floor()
    return torch.where(steps > 0, low + whole * steps, x), bound


def shifted(_: Tensor, arrived: Tensor, bound: Tensor) -> Received:
    """Messages that are too large by a tenth of a step."""
    return arrived + 0.2 * bound.sqrt(), bound


def too_noisy(x: Tensor, arrived: Tensor, bound: Tensor) -> Received:
    """Messages whose variance is larger than promised."""
    return x + 3 * (arrived - x), bound / 2


@pytest.mark.parametrize("bits", [2, 4, 8, "random"])
def test_check_accepts_unbiased_messages_and_finds_mistakes(
    bits: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, honest = make_adaqp_case(bits=bits), AdaQP.transmit_rows
    assert check_unbiased_messages(case).holds
    for mistake in (rounded_down, shifted, too_noisy):

        def transmit_rows(self: AdaQP, x: Tensor, step: int, mistake: Mistake = mistake) -> Received:
            return mistake(x, *honest(self, x, step))

        monkeypatch.setattr(AdaQP, "transmit_rows", transmit_rows)
        assert not check_unbiased_messages(case).holds, mistake
