"""A grid arranges the ranks of a world along named axes, on top of torch's DeviceMesh.

Ranks are numbered in row-major order. A grid knows the members of each axis; `harness.comm.axis` has the collectives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.base.device import is_gpu
from harness.base.errors import UserError
from harness.comm.axis import Axis
from harness.comm.call import drain
from harness.comm.collectives import Group, rank, world_size
from harness.comm.layout import coordinates, list_members
from harness.comm.ring_collectives import RingCollectives
from harness.ledger import AxisName, Ledger


@dataclass(frozen=True, eq=False)
class Grid:
    """One rank's view of its grid.

    Every axis of more than one rank has a process group, created when the grid is built. Combined axes (`axis`) get a
    group at their first use; the combination of all axes uses the world's. An axis of one rank has no group. A second
    group of the same ranks, for all-reduces, is created at the first use of every axis.
    """

    shape: dict[AxisName, int]
    rank: int
    coordinates: dict[AxisName, int]
    ledger: Ledger
    device: torch.device
    composed_from: int | None
    wire: torch.dtype | None
    """The dtype in which features, activations and their gradients are sent; None for their own."""
    _mesh: DeviceMesh | None
    _axes: dict[tuple[AxisName, ...], Axis] = field(default_factory=dict)
    _rings: dict[Group, RingCollectives] = field(default_factory=dict)
    """The ring collectives of each group; axes with the same group share them."""
    _reductions: dict[Group, Group] = field(default_factory=dict)
    """The group for the all-reduces of each group."""

    @classmethod
    def build(
        cls,
        shape: Mapping[AxisName, int],
        ledger: Ledger,
        device: torch.device | None = None,
        composed_from: int | None = None,
        wire: torch.dtype | None = None,
    ) -> "Grid":
        """Build the grid of a world that was joined (`harness.comm.engine`). Collective: every rank calls this.

        Calls of `composed_from` bytes or more use `RingCollectives`; None disables them.
        """
        world, device = world_size(), device or torch.device("cpu")
        _check_shape(shape, world)
        mesh = None
        if world > 1 and device.type != "meta":
            kind = device.type if is_gpu(device) else "cpu"
            mesh = init_device_mesh(kind, tuple(shape.values()), mesh_dim_names=tuple(map(str, shape)))
        own = rank()
        return cls(dict(shape), own, coordinates(shape, own), ledger, device, composed_from, wire, mesh)

    def __getitem__(self, name: AxisName) -> Axis:
        return self.axis((name,))

    @property
    def world(self) -> Axis:
        """All ranks, as one axis."""
        return self.axis(tuple(self.shape))

    def axis(self, names: tuple[AxisName, ...]) -> Axis:
        """Return several axes combined into one. Members are in rank order, whatever the order of the names.

        The first call for a set of names creates its groups, so every rank must make these calls in the same order.
        """
        if unknown := [name for name in names if name not in self.shape]:
            raise UserError(
                f"This grid has the axes {', '.join(self.shape)}, and no axis {', '.join(unknown)}."
            )
        names = tuple(name for name in self.shape if name in names)
        if names not in self._axes:
            self._axes[names] = self._build_axis(names)
        return self._axes[names]

    def drain(self) -> None:
        """Wait for all calls in flight, when a trainer is no longer used.

        Otherwise a message that was never received would match the next receive between the same two ranks.
        """
        drain(self.ledger)
        for ring in self._rings.values():
            ring.drain()

    def _build_axis(self, names: tuple[AxisName, ...]) -> Axis:
        ranks = list_members(self.shape, self.coordinates, names)
        label = names[0] if len(names) == 1 else "+".join(names)
        group = self._get_group(names) if self.device.type != "meta" else _make_replay_group(ranks)
        index, ring, reductions = (
            ranks.index(self.rank),
            self._get_ring(group),
            self._get_reductions(group, ranks),
        )
        return Axis(
            label, len(ranks), index, ranks, group, reductions, self.ledger, self.device, ring, self.wire
        )

    def _get_ring(self, group: Group | None) -> RingCollectives | None:
        if group is None or self.composed_from is None:
            return None
        return self._rings.setdefault(group, RingCollectives(group, self.composed_from))

    def _get_reductions(self, group: Group | None, ranks: tuple[int, ...]) -> Group | None:
        """Return the group for the all-reduces of a group, which must not wait for its calls in flight."""
        if group is None or self.device.type == "meta":
            return group
        if group not in self._reductions:
            self._reductions[group] = _make_group(ranks)
        return self._reductions[group]

    def _get_group(self, names: tuple[AxisName, ...]) -> Group | None:
        wide = tuple(name for name in names if self.shape[name] > 1)
        if self._mesh is None or not wide:
            return None
        if len(wide) == 1:
            return self._mesh.get_group(wide[0])
        if prod(self.shape[name] for name in wide) == self._mesh.size():
            return torch.distributed.group.WORLD
        # A private method of torch: the public functions would create the groups of the other axes again.
        return self._mesh[wide]._flatten().get_group()


def _make_replay_group(ranks: tuple[int, ...]) -> Group | None:
    """Create the group of a replayed rank. A mesh would also create those of all other ranks, perhaps thousands."""
    if len(ranks) == 1:
        return None
    return torch.distributed.group.WORLD if len(ranks) == world_size() else _make_group(ranks)


def _make_group(ranks: tuple[int, ...]) -> Group:
    """Create a group. Only its members call this."""
    group: Group = torch.distributed.new_group(list(ranks), use_local_synchronization=True)
    return group


def _check_shape(shape: Mapping[AxisName, int], world: int) -> None:
    text = " x ".join(f"{name}={size}" for name, size in shape.items())
    if any(size < 1 for size in shape.values()):
        raise UserError(f"The grid {text} has an axis without ranks. Every axis needs at least one.")
    if (ranks := prod(shape.values())) != world:
        raise UserError(
            f"The grid {text} arranges {ranks} ranks, but {world} were started. "
            f"Start {ranks}, or choose a grid whose axes multiply to {world}."
        )
