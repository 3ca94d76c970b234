"""Operators to their few smallest eigenpairs, with one differentiation rule."""

from torch_lapeig.eigen.amg import SmoothedAggregation
from torch_lapeig.eigen.direct import SparseLU
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.operator import SymmetricOperator
from torch_lapeig.eigen.solve import ComponentEigenpairs, Eigenpairs, Solve, component_eigenpairs, eigenpairs
from torch_lapeig.eigen.solvers import ChebyshevSubspace, Eigh, Lanczos, Lobpcg, RitzPairs, Solver, TorchLobpcg

__all__ = [
    "ChebyshevSubspace",
    "ComponentEigenpairs",
    "Eigenpairs",
    "Eigh",
    "Lanczos",
    "Laplacian",
    "Lobpcg",
    "RitzPairs",
    "SmoothedAggregation",
    "Solve",
    "Solver",
    "SparseLU",
    "SymmetricOperator",
    "TorchLobpcg",
    "component_eigenpairs",
    "eigenpairs",
]
