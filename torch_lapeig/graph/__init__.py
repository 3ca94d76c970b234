"""Points to weighted graphs: neighbour search, rules, weightings, storage of edges."""

from torch_lapeig.graph.directed import DirectedGraph as DirectedGraph, SignedGraph as SignedGraph
from torch_lapeig.graph.distances import Precomputed as Precomputed
from torch_lapeig.graph.graph import Graph as Graph, pad_batch as pad_batch
from torch_lapeig.graph.landmarks import Landmarks as Landmarks
from torch_lapeig.graph.pattern import DensePattern as DensePattern, SparsePattern as SparsePattern
from torch_lapeig.graph.rules import KNN as KNN, NME as NME, ExtendingRule as ExtendingRule, Extension as Extension
from torch_lapeig.graph.rules import NeighborRule as NeighborRule, Radius as Radius, knn_graph as knn_graph
from torch_lapeig.graph.rules import radius_graph as radius_graph
from torch_lapeig.graph.search.neighbors import NeighborPairs as NeighborPairs, Neighbors as Neighbors
from torch_lapeig.graph.search.neighbors import nearest_neighbors as nearest_neighbors
from torch_lapeig.graph.search.neighbors import radius_neighbors as radius_neighbors
from torch_lapeig.graph.weights import DensityCorrected as DensityCorrected, HeatKernel as HeatKernel
from torch_lapeig.graph.weights import ImprovedWeights as ImprovedWeights, KernelWeights as KernelWeights
from torch_lapeig.graph.weights import NewEdges as NewEdges, SelfTuning as SelfTuning, SimpleWeights as SimpleWeights
from torch_lapeig.graph.weights import Weighting as Weighting

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))
