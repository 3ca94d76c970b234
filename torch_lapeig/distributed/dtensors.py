"""Rows as one tensor of all ranks: `DTensor` with the placement ``Shard(0)`` at the border, and parts of equal size."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from torch_lapeig.distributed.halo import owners, to_ranks
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import Ranks


def own_rows(x: Any, ranks: Ranks, name: str) -> Any:
    """Return this rank's rows of a `DTensor`, differentiable; return any other object as it is."""
    if not isinstance(x, DTensor):
        return x
    mesh = x.device_mesh
    group = None if mesh.ndim != 1 else dist.get_process_group_ranks(mesh.get_group())
    if x.placements != (Shard(0),) or ranks.group is None or group != dist.get_process_group_ranks(ranks.group):
        raise ValueError(
            f"{name} must have the placement Shard(0) over the processes that share the points, got {x.placements} "
            f"over {mesh}; use {name}.redistribute(placements=[Shard(0)]), or {name}.to_local() if that is the "
            "rows of this process"
        )
    return x.to_local()


def as_given(rows: Tensor, x: Any) -> Tensor:
    """Return rows as a `DTensor` if ``x`` is one, else as they are."""
    return _dtensor(rows, x.device_mesh, x.shape[0]) if isinstance(x, DTensor) else rows


def of_all(rows: Tensor, ranks: Ranks, total: int) -> Tensor:
    """Return equal parts of ``total`` rows as one tensor of all ranks; the rows as they are in a single process."""
    mesh = None if ranks.group is None else DeviceMesh.from_group(ranks.group, rows.device.type)
    return rows if mesh is None else _dtensor(rows, mesh, total)


def equal_part(x: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's part of rows, which are a tensor of `of_all` or whole on every rank."""
    if isinstance(x, DTensor):
        return own_rows(x, ranks, "the rows of a fit")  # type: ignore[no-any-return]
    begin, end = part_of(ranks, len(x), ranks.rank)
    return x[begin:end].clone()


def part_of(ranks: Ranks, total: int, rank: int) -> tuple[int, int]:
    """Return the rows of a rank in parts as `torch.chunk` cuts them, except that a rank may have none."""
    size = -(-total // ranks.world)
    return min(rank * size, total), min((rank + 1) * size, total)


def by_number(points: ShardedPoints, rows: Tensor) -> Tensor:
    """Return rows ``(n, ...)`` of points in equal parts of all, in the order of their numbers; without gradients."""
    offsets = [part_of(points.ranks, points.offsets[-1], rank)[0] for rank in range(points.ranks.world + 1)]
    numbers, arrived = to_ranks(points.ranks, owners(points.numbers, offsets), points.numbers, rows)
    return arrived[numbers.argsort()]


def _dtensor(rows: Tensor, mesh: DeviceMesh, total: int) -> Tensor:
    whole = torch.empty(total, *rows.shape[1:], device="meta")
    options: Any = {"run_check": False, "shape": whole.shape, "stride": whole.stride()}
    return DTensor.from_local(rows.contiguous(), mesh, [Shard(0)], **options)
