"""A choice says one order, completely and without what says nothing, so that equal data has equal names."""

import pytest

from harness.base.errors import UserError
from harness.base.validation import validate
from harness.spec.dataset import DatasetChoice


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"partition": "metis"}, ["parts = 0", "'metis'"]),
        ({"partition": "metis", "parts": -1}, ["parts = -1", "0"]),
        ({"parts": 4}, ["parts = 4", "metis", "file:NAME"]),
        ({"partition": "scotch", "parts": 4}, ["'scotch'", "block, random, metis, ", "hypergraph"]),
        ({"partition": "file:", "parts": 4}, ["'file:'", "file:NAME"]),
        ({"partition": "file:../../etc/passwd", "parts": 4}, ["file:../../etc/passwd"]),
        ({"partition": "file:.hidden", "parts": 4}, ["file:.hidden"]),
        ({"partition": "metis", "parts": 4, "permutation": "double"}, ["'metis'", "permutation = 'double'"]),
    ],
)
def test_invalid_order_is_refused(fields, said):
    with pytest.raises(UserError) as refusal:
        validate(DatasetChoice, {"name": "toy", **fields}, "test")
    assert all(word in str(refusal.value) for word in said), str(refusal.value)


@pytest.mark.parametrize("partition", ["random", "metis", "hypergraph", "file:my.part_8-b"])
def test_a_partition_may_have_any_number_of_parts(partition):
    assert DatasetChoice(name="toy", partition=partition, parts=8).partitioned


def test_the_seed_counts_where_something_is_drawn():
    def effective_seed(**order):
        return DatasetChoice(name="toy", seed=7, **order).effective_seed

    assert effective_seed(permutation="single") == effective_seed(partition="metis", parts=2) == 7
    assert effective_seed() == effective_seed(partition="file:mine", parts=2) == 0
