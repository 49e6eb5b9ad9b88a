"""Features of scattered vertices are those of the whole, whatever is read at a time."""

import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.graph import blocks
from harness.graph.store.memory_store import MemoryStore


@pytest.mark.parametrize("at_once", [1, 100, blocks.STRIPE_NONZEROS])
def test_scattered_features_are_rows_of_the_whole(at_once: int, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "STRIPE_NONZEROS", at_once)
    store = MemoryStore(make_check_graph(211), "single", seed=1)
    whole = store.feature_block(range(store.n), range(2, 9))
    for vertices in (
        torch.tensor([210, 3, 3, 0, 77]),
        torch.arange(210, -1, -1),
        torch.empty(0, dtype=torch.int64),
    ):
        assert torch.equal(blocks.gather_features(store, vertices, range(2, 9)), whole[vertices])
