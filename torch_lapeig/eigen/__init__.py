"""Operators to their smallest eigenpairs, with one differentiation rule."""

from collections.abc import Callable
from typing import NoReturn

from torch_lapeig._gone import stand_in
from torch_lapeig.eigen.amg import SmoothedAggregation
from torch_lapeig.eigen.auto import Auto, Choice
from torch_lapeig.eigen.chebyshev import ChebyshevSubspace
from torch_lapeig.eigen.direct import SparseLU
from torch_lapeig.eigen.eigh import Eigh
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.linear import solve_linear
from torch_lapeig.eigen.lobpcg import Lobpcg
from torch_lapeig.eigen.null_space import NullSpace
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.shift_invert import ShiftInvert
from torch_lapeig.eigen.solve import ComponentEigenpairs, Eigenpairs, Solve, component_eigenpairs, eigenpairs
from torch_lapeig.eigen.solver import Preconditioner, RitzPairs, Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.eigen.torch_lobpcg import TorchLobpcg

__all__ = [
    "Auto",
    "ChebyshevSubspace",
    "Choice",
    "ComponentEigenpairs",
    "Eigenpairs",
    "Eigh",
    "Laplacian",
    "Lobpcg",
    "NullSpace",
    "Operator",
    "Preconditioner",
    "RitzPairs",
    "ShiftInvert",
    "SmoothedAggregation",
    "Solve",
    "Solver",
    "SparseLU",
    "SymmetricOperator",
    "TorchLobpcg",
    "component_eigenpairs",
    "eigenpairs",
    "solve_linear",
]


def __getattr__(name: str) -> Callable[..., NoReturn]:
    return stand_in(__name__, name)
