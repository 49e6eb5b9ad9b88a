"""What PyTorch Geometric saves is read without running anything it might hold."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from harness.base.errors import UserError
from harness.graph.sources import ReadOptions
from harness.graph.sources.pyg_file import PygFile


def data(**more):
    draw = torch.Generator().manual_seed(0)
    ends = to_undirected(torch.randint(0, 12, (2, 30), generator=draw))
    known = {"x": torch.randn(12, 3, generator=draw), "y": torch.arange(12) % 4, "edge_index": ends}
    masks = torch.zeros(12, 2, dtype=torch.bool)
    masks[:5, 0], masks[7:, 1] = True, True
    return Data(**{**known, "train_mask": masks, "val_mask": masks.flip(1), **more})


def read(tmp_path, saved, split=0):
    torch.save(saved, tmp_path / "g.pt")
    return PygFile(kind="pyg", path="g.pt").read_graph(ReadOptions(tmp_path, 0, 4, split))


@pytest.mark.parametrize(
    "wrap", [lambda d: d, Data.to_dict, lambda d: (d.to_dict(), None, Data), lambda d: (d, None)]
)
def test_every_way_to_save_it_gives_the_graph(tmp_path, wrap):
    graph = data()
    raw = read(tmp_path, wrap(graph))
    assert raw.n == graph.num_nodes
    np.testing.assert_array_equal(np.stack([raw.source, raw.target]), graph.edge_index)
    np.testing.assert_array_equal(raw.X, graph.x)
    np.testing.assert_array_equal(raw.y, graph.y)
    assert raw.split.tolist() == [1] * 5 + [0] * 2 + [2] * 5
    assert read(tmp_path, wrap(graph), split=1).split.tolist() == [2] * 5 + [0] * 2 + [1] * 5


def test_a_column_for_each_class(tmp_path):
    sets = torch.arange(36).reshape(12, 3) % 2
    raw = read(tmp_path, data(y=sets.float()))
    np.testing.assert_array_equal(raw.y, sets)
    assert raw.y.dtype == np.int8


def test_edges_alone_are_a_graph(tmp_path):
    raw = read(tmp_path, Data(edge_index=torch.tensor([[0, 4], [1, 2]])))
    assert (raw.n, raw.X, raw.y, raw.split) == (5, None, None, None)
    assert read(tmp_path, Data(edge_index=torch.tensor([[0], [1]]), num_nodes=9)).n == 9


def test_safe_globals_of_others_are_kept(tmp_path):
    before = set(torch.serialization.get_safe_globals())
    read(tmp_path, data())
    assert set(torch.serialization.get_safe_globals()) == before
    assert Data in before


class Planted:
    """Would run a command if it were unpickled."""

    def __reduce__(self):
        return (print, ("unpickled",))


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (Planted(), "cannot be read"),
        ({"edge_index": torch.zeros(2, 3)}, "an integer edge_index of two rows"),
        ({"x": torch.zeros(2, 3)}, "an integer edge_index of two rows"),
        (torch.zeros(3), "an integer edge_index of two rows"),
        (data(num_nodes=3), "edges with ids .* but its vertices are 0 .. 2"),
        (data(y=torch.zeros(12, 2, 2)), "one class per vertex"),
        (data(y=torch.full((12,), 0.5)), "non-integer"),
        ((data(), {"x": torch.tensor([0, 5, 12])}), "several graphs"),
    ],
)
def test_invalid_graph_is_refused(tmp_path, capsys, saved, told):
    with pytest.raises(UserError, match=told):
        read(tmp_path, saved)
    assert "unpickled" not in capsys.readouterr().out


def test_a_split_that_is_not_there_and_a_broken_file_are_named(tmp_path):
    with pytest.raises(UserError, match=r"splits 0 \.\. 1"):
        read(tmp_path, data(), split=2)
    whole = (tmp_path / "g.pt").read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"no archive"):
        (tmp_path / "g.pt").write_bytes(broken)
        with pytest.raises(UserError, match=r"g\.pt cannot be read"):
            PygFile(kind="pyg", path="g.pt").read_graph(ReadOptions(tmp_path, 0, 4, 0))
