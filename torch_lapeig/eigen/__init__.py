"""Operators to their smallest eigenpairs, with one differentiation rule."""

from torch_lapeig.eigen.all_pairs import AllPairs, eigh
from torch_lapeig.eigen.choose import Choice
from torch_lapeig.eigen.factored import FactoredCosine
from torch_lapeig.eigen.function import FunctionOperator
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.linear import resistance_distances, solve_linear
from torch_lapeig.eigen.magnetic import MagneticLaplacian
from torch_lapeig.eigen.meshes import MeshLaplacian, mesh_laplacian
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.signed import SignedLaplacian
from torch_lapeig.eigen.solve import Auto, ComponentEigenpairs, Eigenpairs, Solve, component_eigenpairs, eigenpairs
from torch_lapeig.eigen.solvers.chebyshev import ChebyshevSubspace
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.factors import SparseFactors
from torch_lapeig.eigen.solvers.krylov import Krylov
from torch_lapeig.eigen.solvers.lobpcg import Lobpcg, TorchLobpcg
from torch_lapeig.eigen.solvers.multigrid import SmoothedAggregation
from torch_lapeig.eigen.solvers.shift_invert import ShiftInvert
from torch_lapeig.eigen.solvers.solver import Preconditioner, RitzPairs, Solver
from torch_lapeig.eigen.svd import SingularTriplets, svd
from torch_lapeig.eigen.symmetric import NullSpace, SymmetricOperator

__all__ = [
    "AllPairs",
    "Auto",
    "ChebyshevSubspace",
    "Choice",
    "ComponentEigenpairs",
    "Eigenpairs",
    "Eigh",
    "FactoredCosine",
    "FunctionOperator",
    "Krylov",
    "Laplacian",
    "Lobpcg",
    "MagneticLaplacian",
    "MeshLaplacian",
    "NullSpace",
    "Operator",
    "Preconditioner",
    "RitzPairs",
    "ShiftInvert",
    "SignedLaplacian",
    "SingularTriplets",
    "SmoothedAggregation",
    "Solve",
    "Solver",
    "SparseFactors",
    "SymmetricOperator",
    "TorchLobpcg",
    "component_eigenpairs",
    "eigenpairs",
    "eigh",
    "mesh_laplacian",
    "resistance_distances",
    "solve_linear",
    "svd",
]
