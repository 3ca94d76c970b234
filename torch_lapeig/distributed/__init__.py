"""One graph on many processes, over `torch.distributed`: the interfaces of one process, with rows on each process.

See docs/distributed.md.
"""

from torch_lapeig.distributed.faces import Sharded, sum_gradients
from torch_lapeig.distributed.graph import ShardedGraph, sharded_graph
from torch_lapeig.distributed.pattern import ShardedPattern
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import DistributedError, Ranks

__all__ = [
    "DistributedError",
    "Ranks",
    "Sharded",
    "ShardedGraph",
    "ShardedPattern",
    "ShardedPoints",
    "sharded_graph",
    "sum_gradients",
]
