"""One graph on many processes, over `torch.distributed`: the interfaces of one process, with rows on each process.

Begin with `Sharded`; the other names are its parts.
"""

from torch_lapeig.distributed.faces import Sharded as Sharded, sum_gradients as sum_gradients
from torch_lapeig.distributed.graph import ShardedGraph as ShardedGraph, sharded_graph as sharded_graph
from torch_lapeig.distributed.pattern import ShardedPattern as ShardedPattern
from torch_lapeig.distributed.points import ShardedPoints as ShardedPoints
from torch_lapeig.distributed.ranks import DistributedError as DistributedError, Ranks as Ranks

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))
