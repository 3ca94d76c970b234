"""Operators to their smallest eigenpairs, with one differentiation rule."""

from torch_lapeig.eigen.all_pairs import AllPairs as AllPairs
from torch_lapeig.eigen.all_pairs import eigh as eigh
from torch_lapeig.eigen.choose import Choice as Choice
from torch_lapeig.eigen.factored import FactoredCosine as FactoredCosine
from torch_lapeig.eigen.function import FunctionOperator as FunctionOperator
from torch_lapeig.eigen.laplacian import Laplacian as Laplacian
from torch_lapeig.eigen.linear import resistance_distances as resistance_distances
from torch_lapeig.eigen.linear import solve_linear as solve_linear
from torch_lapeig.eigen.magnetic import MagneticLaplacian as MagneticLaplacian
from torch_lapeig.eigen.meshes import MeshLaplacian as MeshLaplacian
from torch_lapeig.eigen.meshes import mesh_laplacian as mesh_laplacian
from torch_lapeig.eigen.operator import Operator as Operator
from torch_lapeig.eigen.signed import SignedLaplacian as SignedLaplacian
from torch_lapeig.eigen.solve import Auto as Auto
from torch_lapeig.eigen.solve import ComponentEigenpairs as ComponentEigenpairs
from torch_lapeig.eigen.solve import Eigenpairs as Eigenpairs
from torch_lapeig.eigen.solve import Solve as Solve
from torch_lapeig.eigen.solve import component_eigenpairs as component_eigenpairs
from torch_lapeig.eigen.solve import eigenpairs as eigenpairs
from torch_lapeig.eigen.solvers.chebyshev import ChebyshevSubspace as ChebyshevSubspace
from torch_lapeig.eigen.solvers.dense import Eigh as Eigh
from torch_lapeig.eigen.solvers.factors import SparseFactors as SparseFactors
from torch_lapeig.eigen.solvers.krylov import Krylov as Krylov
from torch_lapeig.eigen.solvers.lobpcg import Lobpcg as Lobpcg
from torch_lapeig.eigen.solvers.lobpcg import TorchLobpcg as TorchLobpcg
from torch_lapeig.eigen.solvers.multigrid import SmoothedAggregation as SmoothedAggregation
from torch_lapeig.eigen.solvers.shift_invert import ShiftInvert as ShiftInvert
from torch_lapeig.eigen.solvers.solver import Preconditioner as Preconditioner
from torch_lapeig.eigen.solvers.solver import RitzPairs as RitzPairs
from torch_lapeig.eigen.solvers.solver import Solver as Solver
from torch_lapeig.eigen.svd import SingularTriplets as SingularTriplets
from torch_lapeig.eigen.svd import svd as svd
from torch_lapeig.eigen.symmetric import NullSpace as NullSpace
from torch_lapeig.eigen.symmetric import SymmetricOperator as SymmetricOperator

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))
