"""A replay counts only the rows that a kernel reads or writes, however large the tensor is that has them."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from harness.kernels.attention import attend
from harness.kernels.csr import make_meta_csr
from harness.ledger import Op, TensorName
from harness.ledger.tape import Tape
from harness.prediction.replay import Meter

ROWS, WIDTH, SELECTED = 1000, 8, 10


def make_tensor(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def count_bytes(run: Callable[[], object]) -> int:
    """Return the bytes that the operators of a function read and write."""
    tape = Tape()
    tape.start()
    with Meter(tape), tape.op(Op.COPY, tensor=TensorName.H):
        run()
    return sum(amounts.bytes_touched for amounts in tape.stop().values())


@pytest.mark.parametrize("rows", [ROWS, 100 * ROWS])
@pytest.mark.parametrize(("name", "times"), [("index_select", 2), ("index_copy_", 2), ("index_add_", 3)])
def test_selected_rows_are_counted_and_not_the_tensor_that_has_them(name: str, times: int, rows: int) -> None:
    X, index = make_tensor(rows, WIDTH), torch.empty(SELECTED, dtype=torch.int64, device="meta")
    more = () if name == "index_select" else (make_tensor(SELECTED, WIDTH),)
    bytes_touched = count_bytes(lambda: getattr(X, name)(0, index, *more))
    assert bytes_touched == 8 * SELECTED + times * 4 * SELECTED * WIDTH


def test_attention_reads_at_most_one_row_for_each_entry() -> None:
    counted = []
    for cols in (10_000, 1_000_000):
        A = make_meta_csr(20, cols, 500, torch.float32)
        d, s, T = make_tensor(2, 20), make_tensor(2, cols), make_tensor(2, cols, WIDTH)
        counted.append(count_bytes(partial(attend, A, d, s, T)))
    assert counted[0] == counted[1] < 10_000 * WIDTH * 4
