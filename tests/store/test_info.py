"""What is known of a dataset before and after its store is built, and what its partition costs."""

import pytest

from harness.graph.partition import count_needed_rows
from harness.spec.dataset import DatasetChoice
from harness.store.datasets import build_store, open_dataset
from harness.store.info import describe_dataset

PLAIN = DatasetChoice(name="toy")
PARTS = DatasetChoice(name="toy", partition="random", parts=4)


def test_before_and_after(root):
    before = describe_dataset(root, PLAIN)
    assert not before["built"]
    assert before["card"]["classes"] == 3
    build_store(root, PLAIN)
    after = describe_dataset(root, PLAIN)
    assert after["built"]
    assert after["manifest"]["n"] == 53
    assert after["bytes"] > 1000
    assert "cut" not in after
    degrees = open_dataset(root, PLAIN).adjacency(range(53), range(53)).rowptr.diff()
    assert after["degrees"]["least"] == degrees.min()
    assert (
        after["degrees"]["most"]
        == degrees.max()
        == after["degrees"]["share_of_top_hundredth"] * degrees.sum()
    )
    assert after["degrees"]["mean"] == pytest.approx(degrees.double().mean())
    assert not describe_dataset(root, PARTS)["built"]


def test_what_the_parts_exchange_is_told(root):
    """53 vertices in random quarters: 14, 14, 14 and 11."""
    build_store(root, PARTS)
    known = describe_dataset(root, PARTS)
    store = open_dataset(root, PARTS)
    needed = count_needed_rows(store.adjacency(range(53), range(53)), store.bounds)
    assert known["cut"]["vertices"] == {"fewest": 11, "most": 14}
    assert known["cut"]["rows_needed"] == {
        "total": sum(needed),
        "most": max(needed),
        "fewest_over_most": min(needed) / max(needed),
    }
    assert [part["rows_needed"] for part in known["cut"]["parts"]] == needed
    assert known["cut"]["nonzeros"]["mean"] == pytest.approx(store.nnz / 4)
    assert known["manifest"]["partition"] == "random"
