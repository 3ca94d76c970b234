"""Operators of a function: indefinite and with gradients, exact at equal eigenvalues."""

import math

import pytest
import torch

from problems import check_pairs, heat_of, points, subspace_angle
from torch_lapeig import KNN, KernelWeights, eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, FactoredCosine, FunctionOperator, Lobpcg, Operator

SPECTRUM = torch.cat([torch.tensor([-3.0, -2, -2, -1]), torch.linspace(0, 5, 36)]).double()
BASIS = torch.linalg.qr(points(40, 40))[0]
TURNS = 0.1 * points(40, 40, batch=3)
PROBE = points(40, 40)


def turned(y, angles):
    """A(θ) Y for a matrix whose eigenvalues change with θ and stay equal, and whose eigenspaces turn."""
    turn = torch.matrix_exp(torch.einsum("i,ijk->jk", angles, TURNS - TURNS.mT)) @ BASIS
    return turn @ ((1 + angles.square().sum()) * SPECTRUM[:, None] * (turn.mT @ y))


def invariant(pairs):
    return (PROBE * heat_of(pairs, 1 / 3)).sum()


def loss(angles):
    return invariant(eigenpairs(FunctionOperator(turned, 40, [angles]), 3))


def angles():
    return torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("solver", [None, ChebyshevSubspace(), Lobpcg(preconditioner=None)], ids=str)
def test_an_indefinite_matrix_with_equal_eigenvalues(solver):
    pairs = eigenpairs(FunctionOperator(lambda y: BASIS @ (SPECTRUM[:, None] * (BASIS.mT @ y)), 40), 4, solver)
    check_pairs(pairs, SPECTRUM, atol=1e-12, gap_rtol=1e-6)
    torch.testing.assert_close(pairs.projected, torch.diag(SPECTRUM[:4]), atol=1e-12, rtol=0)
    assert subspace_angle(BASIS[:, :4], pairs.vectors) < 1e-9


def test_derivatives_of_any_mode_at_equal_eigenvalues():
    assert torch.autograd.gradcheck(loss, [angles()], check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(loss, [angles()], check_fwd_over_rev=True, fast_mode=True)


def test_an_operator_class_with_parameters():
    class Turned(Operator):
        shape, dtype, device = (40,), torch.float64, torch.device("cpu")
        bound = torch.tensor([20.0], dtype=torch.float64)

        def __init__(self, angles):
            self._angles = angles

        parameters = property(lambda self: (self._angles,))

        def matmul_at(self, parameters, y):
            return turned(y.reshape(-1, y.shape[-2], y.shape[-1])[0], *parameters).reshape(y.shape) + 8 * y

    x = angles()
    pairs = eigenpairs(Turned(x), 3)
    shifted = pairs.vectors @ torch.matrix_exp(-(pairs.projected - 8 * torch.eye(3)) / 3) @ pairs.vectors.mT
    (found,) = torch.autograd.grad((PROBE * shifted).sum(), x)
    (exact,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(found, exact, atol=1e-8, rtol=1e-8)
    with pytest.raises(NotImplementedError, match="define matmul_at"):
        type("Empty", (Operator,), {"parameters": (x,)})().matmul(PROBE)


@pytest.mark.parametrize("exponent", [-12, 12, -100, 100])
def test_matrices_in_any_unit(exponent):
    x = angles()
    unit = 10.0**exponent
    pairs = eigenpairs(FunctionOperator(lambda y, a: unit * turned(y, a), 40, [x]), 3)
    assert pairs.converged
    torch.testing.assert_close(pairs.values / unit, 1.14 * SPECTRUM[:3], atol=1e-11, rtol=0)
    scaled = pairs.vectors @ torch.matrix_exp(-pairs.projected / unit / 3) @ pairs.vectors.mT
    (found,) = torch.autograd.grad((PROBE * scaled).sum(), x)
    (exact,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(found, exact, atol=1e-8, rtol=1e-8)


def test_batches_in_float32():
    scale = torch.tensor([1.0, 30.0, 0.0], requires_grad=True)
    ring = 2 - 2 * torch.cos(2 * math.pi * torch.tensor([0, 1, 1, 2, 2]) / 24)

    def rings(y, scale):
        return scale[:, None, None] * (2 * y - y.roll(1, 1) - y.roll(-1, 1))

    pairs = eigenpairs(FunctionOperator(rings, (3, 24), [scale]), 5)
    assert pairs.converged.all()
    torch.testing.assert_close(pairs.values, scale.detach()[:, None] * ring, atol=1e-4, rtol=0)
    pairs.values[:2].sum().backward()
    torch.testing.assert_close(scale.grad, ring.sum() * torch.tensor([1.0, 1, 0]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("outlier", [1.5, 1e3, -1e3, 1e9])
def test_estimated_bounds_hold_beside_one_outlier(outlier):
    """One eigenvalue far from the others, to which a random column is nearly orthogonal."""
    diagonal = torch.cat([torch.linspace(0, 1, 5000).double(), torch.tensor([outlier], dtype=torch.float64)])[:, None]
    operator = FunctionOperator(lambda y: diagonal * y, 5001)
    lower, upper = operator.ends()
    assert upper >= diagonal.max()
    assert diagonal.min() >= lower - 1e-6 * operator.bound.abs()


def test_parameters_that_the_function_does_not_use_have_no_gradient():
    unused, x = torch.ones(3, dtype=torch.float64, requires_grad=True), angles()
    for parameters in ([unused], [unused, x]):

        def function(y, unused, *rest):
            return turned(y, *(rest or [x.detach()]))

        invariant(eigenpairs(FunctionOperator(function, 40, parameters), 3)).backward()
        assert unused.grad is None or not unused.grad.any()
    torch.testing.assert_close(x.grad, torch.autograd.grad(loss(x), x)[0])


def test_functions_may_change_their_argument_in_place():
    scale = torch.linspace(1, 40, 40, dtype=torch.float64).requires_grad_()
    pairs = eigenpairs(FunctionOperator(lambda y, s: y.mul_(s[:, None]), 40, [scale]), 3)
    torch.testing.assert_close(pairs.values.detach(), torch.tensor([1, 2, 3], dtype=torch.float64), atol=1e-10, rtol=0)
    (gradient,) = torch.autograd.grad(pairs.values.sum(), scale)
    torch.testing.assert_close(gradient, (torch.arange(40) < 3).double(), atol=1e-8, rtol=0)
    x = points(20, 2)
    graph = KNN(3)(x)
    in_place = KernelWeights(lambda d2: d2.neg_().exp_())(x, graph).weight
    torch.testing.assert_close(in_place, KernelWeights(lambda d2: torch.exp(-d2))(x, graph).weight)


OPERATORS = {"parameters have": lambda a: FunctionOperator(lambda y, a: a @ y, 20, [a]), "x has": FactoredCosine}


@pytest.mark.parametrize(("says", "make"), OPERATORS.items(), ids=OPERATORS)
def test_changes_in_place_are_refused(says, make):
    operator = make(given := torch.eye(20).double() + 1)
    given.mul_(2)
    with pytest.raises(ValueError, match=f"{says} changed in place"):
        eigenpairs(operator, 2)
