"""Rows of a sparse matrix from their owners: how long they are, then their columns, then their values.

What samplers fetch of a graph in block rows, on the host. In a replay nobody answers: the rows are known, and calls go
out in their sizes.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels import Csr
from harness.ledger import TensorName
from harness.parallel.asking import Asked


def rows_from_owners(asked: Asked, leaving: Csr, mine: Csr, known: Csr | None) -> Csr:
    """Those that were named, given the rows that leave and this member's own; `known` are they, in a replay."""
    lengths = _answer(asked, leaving.rowptr.diff(), mine.rowptr.diff(), TensorName.COUNT)
    if known is not None:
        lengths = known.rowptr.diff()
    absent = torch.cat([lengths[: asked.before], lengths[asked.before + mine.rows :]])
    entries = asked._replace(
        wanted=sums(absent, asked.wanted),
        asked=sums(leaving.rowptr.diff(), asked.asked),
        before=int(lengths[: asked.before].sum()),
    )
    col = _answer(entries, leaving.col, mine.col, TensorName.INDEX)
    val = _answer(entries, leaving.val, mine.val, TensorName.A)
    return Csr(pad(lengths.cumsum(0), (1, 0)), col, val, mine.cols) if known is None else known


def _answer(asked: Asked, leaving: Tensor, mine: Tensor, tensor: TensorName) -> Tensor:
    """On the host; in a replay nowhere."""
    device = asked.over.device
    found = asked.answer(leaving.to(device), mine.to(device), tensor)
    return found if found.is_meta else found.cpu()


def sums(lengths: Tensor, parts: list[int]) -> list[int]:
    """Of consecutive parts."""
    return [int(part.sum()) for part in lengths.split(parts)]
