"""Points to weighted graphs: neighbour search, rules, weightings, storage of edges."""

from torch_lapeig.graph.directed import DirectedGraph, SignedGraph
from torch_lapeig.graph.graph import Graph, pad_batch
from torch_lapeig.graph.landmarks import Landmarks
from torch_lapeig.graph.pattern import DensePattern, SparsePattern
from torch_lapeig.graph.rules import (
    KNN,
    ExtendingRule,
    Extension,
    NeighborRule,
    Precomputed,
    Radius,
    knn_graph,
    radius_graph,
)
from torch_lapeig.graph.search.neighbors import NeighborPairs, Neighbors, nearest_neighbors, radius_neighbors
from torch_lapeig.graph.weights import (
    DensityCorrected,
    HeatKernel,
    ImprovedWeights,
    KernelWeights,
    NewEdges,
    SelfTuning,
    SimpleWeights,
    Weighting,
)

__all__ = [
    "KNN",
    "DensePattern",
    "DensityCorrected",
    "DirectedGraph",
    "ExtendingRule",
    "Extension",
    "Graph",
    "HeatKernel",
    "ImprovedWeights",
    "KernelWeights",
    "Landmarks",
    "NeighborPairs",
    "NeighborRule",
    "Neighbors",
    "NewEdges",
    "Precomputed",
    "Radius",
    "SelfTuning",
    "SignedGraph",
    "SimpleWeights",
    "SparsePattern",
    "Weighting",
    "knn_graph",
    "nearest_neighbors",
    "pad_batch",
    "radius_graph",
    "radius_neighbors",
]
