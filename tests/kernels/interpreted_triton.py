"""Run the Triton kernels in Triton's interpreter, on the CPU. test_triton_spmm.py runs this file.

Values have few bits, so that products are exact in float32 and a fused multiply-add equals a separate addition.
"""

import pytest
import torch

from harness.kernels import triton_spmm
from harness.kernels.csr import Csr, cast, from_coo, to_scipy
from harness.kernels.random import Purpose, integers
from harness.kernels.row_schedule import PIECE as PIECE_OF_A_GPU
from harness.kernels.row_schedule import schedule_rows
from harness.kernels.triton_spmm import SUMS, multiply_into, pad_rows

PIECE = 8
LENGTHS = (0, 3, PIECE, 1, PIECE + 1, 0, 5 * PIECE + 3, PIECE - 1, 2 * PIECE, 4, 12, 0)
"""Empty and short rows, rows of slightly more than a piece, of exactly one or many pieces; more rows than a tile."""
COLS = 23
WIDTHS = (1, 1, 3, 16, 16, 17, 41, 47, 64, 64, 65, 130, 128, 256)
"""Every second product is added to a matrix."""


@pytest.fixture(params=[False, True], ids=["dense rows", "padded rows"])
def is_padded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if rows of H are padded to whole vectors, which the number of entries decides on a GPU."""
    monkeypatch.setattr(triton_spmm, "LEAST_ENTRIES", 0 if request.param else 1 << 40)
    return bool(request.param)


def short_numbers(seed: int, *shape: int) -> torch.Tensor:
    size = torch.Size(shape).numel()
    return ((integers(seed, Purpose.TEST, range(size), high=8192) - 4096) / 4096).reshape(shape)


def matrix(dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS, cols: int = COLS) -> Csr:
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    col = integers(1, Purpose.EDGES, range(len(row)), high=cols)
    return cast(from_coo(row, col, short_numbers(2, len(row)), (len(lengths), cols)), dtype)


def multiply(A: Csr, H: torch.Tensor, Z: torch.Tensor | None, piece: int = PIECE) -> torch.Tensor:
    result = H.new_full((A.rows, H.shape[1]), torch.nan) if Z is None else Z.clone()
    multiply_into(A, H, result, schedule_rows(A.rowptr, piece), add=Z is not None)
    return result


def chains(A: Csr, H: torch.Tensor, Z: torch.Tensor | None) -> torch.Tensor:
    """Return A H in the documented order: one chain of additions per row or piece, then one over the sums of pieces."""
    wide = SUMS[H.dtype]
    result = torch.zeros(A.rows, H.shape[1], dtype=wide) if Z is None else Z.to(wide, copy=True)
    for i in range(A.rows):
        entries = range(int(A.rowptr[i]), int(A.rowptr[i + 1]))
        if len(entries) <= PIECE:
            for e in entries:
                result[i] += A.val[e].to(wide) * H[A.col[e]].to(wide)
            continue
        for start in range(0, len(entries), PIECE):
            piece = torch.zeros(H.shape[1], dtype=wide)
            for e in entries[start : start + PIECE]:
                piece += A.val[e].to(wide) * H[A.col[e]].to(wide)
            result[i] += piece
    return result


@pytest.mark.usefixtures("is_padded")
@pytest.mark.parametrize(("width", "add"), [(width, number % 2 == 1) for number, width in enumerate(WIDTHS)])
def test_float32_products_are_bitwise_equal_to_chains_of_additions(width, add):
    A, H = matrix(torch.float32), short_numbers(3, COLS, width).float()
    Z = short_numbers(4, A.rows, width).float() if add else None
    once, again = (multiply(A, H, Z) for _ in range(2))
    assert torch.equal(once, chains(A, H, Z))
    assert torch.equal(again, once)


@pytest.mark.usefixtures("is_padded")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("width", "add"), [(3, True), (16, False), (41, False), (47, True), (65, True), (65, False)]
)
def test_products_in_other_types_equal_chains_of_additions(dtype, width, add):
    """The interpreter truncates to bf16 where a GPU rounds: a difference of less than one unit in the last place."""
    A, H = matrix(dtype), short_numbers(3, COLS, width).to(dtype)
    Z = short_numbers(4, A.rows, width).to(dtype) if add else None
    expected, result = chains(A, H, Z), multiply(A, H, Z)
    error = (result.double() - expected.double()).abs()
    unit = torch.finfo(dtype).eps if dtype == torch.bfloat16 else 0.0
    assert bool((error <= unit * expected.double().abs()).all())


@pytest.mark.parametrize(("dtype", "widest"), [(torch.float64, 2), (torch.float32, 4), (torch.bfloat16, 8)])
def test_rows_are_padded_where_they_then_take_fewer_loads(is_padded, dtype, widest):
    for width in range(1, 70):
        H = torch.ones(COLS, width, dtype=dtype)
        padded = pad_rows(H, 4 * COLS)
        aligned = max(vector for vector in (1, 2, 4, 8) if vector <= widest and width % vector == 0)
        vectors = -(-width // widest)
        if is_padded and vectors < width // aligned:
            assert padded.shape == (COLS, vectors * widest)
            assert padded[:, :width].equal(H)
            assert not padded[:, width:].any()
        else:
            assert padded is H
        assert pad_rows(H, 4 * COLS - 1) is H, "too few entries for each row of H"


def test_a_long_row_of_ones_in_bfloat16_sums_to_its_length():
    """A sum in bfloat16 would stop at 256."""
    A = cast(
        from_coo(torch.zeros(20_000).long(), torch.arange(20_000), torch.ones(20_000), (1, 20_000)),
        torch.bfloat16,
    )
    H = torch.ones(20_000, 3).bfloat16()
    assert multiply(A, H, None, PIECE_OF_A_GPU).tolist() == [torch.full((3,), 20_000.0).bfloat16().tolist()]


def test_products_with_default_pieces_equal_scipy():
    A = matrix(torch.float64, (0, 700, 2, 1300, 512, 513, 1))
    H = short_numbers(3, COLS, 17).double()
    result = multiply(A, H, None, PIECE_OF_A_GPU)
    assert torch.allclose(result, torch.from_numpy(to_scipy(A) @ H.numpy()), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("pointers", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("columns", [torch.int32, torch.int64], ids=str)
def test_32_and_64_bit_indices_give_bitwise_equal_products(pointers, columns):
    A, H = matrix(torch.float32), short_numbers(3, COLS, 4).float()
    other = A._replace(rowptr=A.rowptr.to(pointers), col=A.col.to(columns))
    assert torch.equal(multiply(other, H, None), chains(A, H, None))


@pytest.mark.parametrize("lengths", [(), (0, 0, 0), (0, 1), (1,)], ids=str)
@pytest.mark.parametrize("width", [0, 1, 5])
def test_products_of_empty_and_nearly_empty_matrices(lengths, width):
    A, H = matrix(torch.float32, lengths), short_numbers(3, COLS, width).float()
    for Z in (None, short_numbers(4, A.rows, width).float()):
        assert torch.equal(multiply(A, H, Z), chains(A, H, Z))


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # from numpy, for inf times 0
def test_non_finite_values_affect_only_their_rows():
    A, H = matrix(torch.float32), short_numbers(3, COLS, 5).float()
    A.val[int(A.rowptr[3])] = torch.nan  # a row with one entry, next to a row with a full piece
    A.val[-1] = torch.inf
    ordinary = [i for i in range(A.rows) if i not in (3, 10)]
    assert torch.equal(multiply(A, H, None)[ordinary], chains(A, H, None)[ordinary])
    assert multiply(A, H, None)[3].isnan().all()
    assert not multiply(A, H, None)[10].isfinite().any()


def test_rows_beyond_2_to_the_31_elements_are_addressed():
    """H has more than 2^31 elements, of which only the requested rows are accessed."""
    width, rows = 128, (1 << 24) + 3
    H = torch.empty(rows, width, dtype=torch.bfloat16)
    H[[0, rows - 1]] = torch.tensor([[1.0], [2.0]]).bfloat16()
    A = from_coo(torch.tensor([0, 1, 1]), torch.tensor([rows - 1, 0, rows - 1]), torch.ones(3), (2, rows))
    assert multiply(cast(A, torch.bfloat16), H, None)[:, [0, -1]].tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_mismatched_operands_are_refused():
    A, H = matrix(torch.float32), short_numbers(3, COLS, 4).float()
    for operand in (H[1:], H.double(), H.T.contiguous().T):
        with pytest.raises(AssertionError):
            multiply(A, operand, None)
    with pytest.raises(KeyError):
        multiply(cast(A, torch.float16), H.half(), None)
