"""Differentiable spectral embedding for PyTorch: points, graph, weights, Laplacian, eigenpairs, embedding."""

from torch_lapeig._checks import ConvergenceError, ConvergenceWarning, DegeneracyWarning, GraphWarning
from torch_lapeig.eigen import Eigenpairs, eigenpairs
from torch_lapeig.embedding import LaplacianEigenmaps
from torch_lapeig.graph import KNN, Graph, Radius, knn_graph, radius_graph
from torch_lapeig.laplacian import Laplacian
from torch_lapeig.loss import LaplacianSmoothness, laplacian_smoothness
from torch_lapeig.solvers import ChebyshevSubspace, Eigh
from torch_lapeig.weights import HeatKernel, SimpleWeights, Weighting

__version__ = "0.1.0"

__all__ = [
    "KNN",
    "ChebyshevSubspace",
    "ConvergenceError",
    "ConvergenceWarning",
    "DegeneracyWarning",
    "Eigenpairs",
    "Eigh",
    "Graph",
    "GraphWarning",
    "HeatKernel",
    "Laplacian",
    "LaplacianEigenmaps",
    "LaplacianSmoothness",
    "Radius",
    "SimpleWeights",
    "Weighting",
    "eigenpairs",
    "knn_graph",
    "laplacian_smoothness",
    "radius_graph",
]
