"""An epoch visits all targets once, on any number of groups."""

import pytest
import torch

from harness.strategies.sampling.sampler import BatchSchedule


@pytest.mark.parametrize(
    ("size", "groups", "targets"), [(10, 1, 97), (10, 4, 97), (97, 3, 97), (200, 2, 97), (5, 2, 0), (1, 6, 4)]
)
def test_epoch_trains_on_every_target_once(size: int, groups: int, targets: int) -> None:
    """This includes short last batches, and steps in which some groups have no batch."""
    batches, vertices = BatchSchedule(3, size, groups, targets), torch.arange(targets) * 2
    orders = []
    for epoch in range(2):
        found = []
        for step in range(epoch * batches.steps, (epoch + 1) * batches.steps):
            for group in range(groups):
                at, number = batches.locate_batch(step, group)
                assert at == epoch
                found.append(batches.batch_targets(at, number, vertices))
        assert all(len(batch) == size for batch in found[: targets // size])
        assert torch.cat(found).sort().values.tolist() == vertices.tolist()
        orders.append(torch.cat(found).tolist())
    assert orders[0] != orders[1] or targets < 5
