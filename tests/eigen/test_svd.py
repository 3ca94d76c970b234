"""Singular triplets: residuals, and gradients of first and second order, at equal and at zero singular values, too."""

import copy

import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck

from problems import check_derivatives, every, points
from torch_lapeig import DegeneracyWarning, svd
from torch_lapeig.eigen import Eigh

ORTHOGONAL = torch.linalg.qr(points(4, 4)).Q
LOW = points(6, 2) @ points(2, 5, seed=1)
SPARSE = points(60, 30) * (points(60, 30, seed=1) > 0.8)
COMPLEX = torch.complex(points(7, 5), points(7, 5, seed=1))
RIGHT = torch.linalg.qr(points(30, 30, seed=1)).Q
MATRICES = {"tall": points(7, 5), "wide": points(5, 7), "row": points(1, 4), "one": points(1, 1)}
MATRICES |= {"batch": points(8, 5, batch=3), "float32": points(9, 6).float(), "complex": COMPLEX}
MATRICES |= {"not contiguous": points(5, 9).mT[::2], "zero": torch.zeros(5, 4, dtype=torch.float64)}
MATRICES |= {"batch of ranks": torch.stack([LOW, points(6, 5), 0 * LOW, 1e-200 * LOW]), "orthogonal": ORTHOGONAL}
GRADED = torch.logspace(0, -18, 30).double()[:, None] * RIGHT
MATRICES |= {"graded": points(50, 30) @ GRADED, "large and graded": points(900, 30) @ GRADED}
MATRICES |= {"sparse": SPARSE.to_sparse_csr(), "complex and sparse": (SPARSE * 1j).to_sparse_coo()}
MATRICES |= {"integers of SciPy": scipy.sparse.csc_array(SPARSE.numpy().astype(int)), "large": points(900, 40)}
MATRICES |= {"large, of rank 2": LOW.repeat(150, 10), "large and not centred": 1e4 + points(40, 900)}
MATRICES |= {"large and sparse": torch.block_diag(*[SPARSE] * 10).to_sparse_coo()}


def cube(found):
    """U S³ Vᴴ, which does not depend on the choice of basis."""
    return found.U @ torch.matrix_power(found.projected, 3) @ found.Vh


LOSSES = {
    "cube": cube,
    "polar": lambda found: found.U @ found.Vh,
    "projector": lambda found: found.U @ found.U.mH,
    "nuclear norm": lambda found: found.projected.diagonal(dim1=-2, dim2=-1).sum(-1),
}


@every(matrix=MATRICES, k=[None, 4])
def test_triplets_are_orthonormal_and_solve_both_equations(matrix, k):
    dense = torch.as_tensor(matrix.toarray()).double() if scipy.sparse.issparse(matrix) else matrix.to_dense()
    k = k and min(k, *dense.shape[-2:])
    found = svd(matrix, k)
    u, s, vh = found
    values = torch.linalg.svdvals(dense)[..., : s.shape[-1]]
    eps = 1e4 * torch.finfo(s.dtype).eps
    close = {"atol": eps * values.max().clamp_min(1e-300).item(), "rtol": 0}
    torch.testing.assert_close(s, values, **close)
    torch.testing.assert_close(dense @ vh.mH, u * s[..., None, :], **close)
    torch.testing.assert_close(dense.mH @ u, vh.mH * s[..., None, :], **close)
    eye = torch.eye(s.shape[-1], dtype=u.dtype).expand(*s.shape, -1)
    torch.testing.assert_close(u.mH @ u, eye, atol=eps, rtol=0)
    torch.testing.assert_close(vh @ vh.mH, eye, atol=eps, rtol=0)
    assert found.converged.all()
    assert (found.residuals <= close["atol"]).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("matrix", [points(4, 3), points(2, 3, batch=2), 3 * ORTHOGONAL, COMPLEX[:3, :2]], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_derivatives_of_both_orders_and_modes(loss, matrix):
    check_derivatives(lambda a: LOSSES[loss](svd(a + 0)), matrix, second=1e-4)


def test_vectors_of_distinct_values_have_derivatives():
    assert gradcheck(lambda a: tuple(svd(a, 2)), points(4, 5).requires_grad_())


def test_zero_singular_values():
    matrix = LOW.clone().requires_grad_()
    assert gradcheck(lambda a: cube(svd(a)), matrix, check_forward_ad=True)
    u, _, vh = torch.linalg.svd(LOW)
    (gradient,) = torch.autograd.grad(svd(matrix).S.sum(), matrix)
    torch.testing.assert_close(gradient, u[:, :2] @ vh[:2])  # the shortest subgradient of the nuclear norm


def test_the_norm_of_an_orthogonal_matrix_to_second_order():
    matrix, step = ORTHOGONAL.clone().requires_grad_(), points(4, 4, seed=3)
    norm = svd(matrix).projected.square().sum()
    (gradient,) = torch.autograd.grad(norm, matrix, create_graph=True)
    torch.testing.assert_close(gradient, 2 * ORTHOGONAL)
    torch.testing.assert_close(torch.autograd.grad((gradient * step).sum(), matrix)[0], 2 * step)


def test_functions_and_sparse_matrices_have_the_gradients_of_dense_ones():
    dense = SPARSE.clone().requires_grad_()
    cube(svd(dense, 3)).sum().backward()
    other, layouts = SPARSE.clone().requires_grad_(), [SPARSE.to_sparse_coo(), SPARSE.to_sparse_csr()]
    cube(svd((lambda y, a: a @ y, lambda x, a: a.mT @ x), 3, shape=(60, 30), parameters=[other])).sum().backward()
    torch.testing.assert_close(other.grad, dense.grad)
    for sparse in layouts:
        cube(svd(sparse.requires_grad_(), 3)).sum().backward()
        assert sparse.grad.layout == sparse.layout
        torch.testing.assert_close(sparse.grad.to_dense(), dense.grad * (SPARSE != 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_taken_as_float32(dtype):
    matrix = (ORTHOGONAL * torch.linspace(1, 0.02, ORTHOGONAL.shape[1])).to(dtype).requires_grad_()
    found = svd(matrix)
    torch.testing.assert_close(found.U @ found.projected @ found.Vh, matrix.float(), atol=1e-6, rtol=0)
    found.S.sum().backward()  # U Vᴴ, with all singular values 1
    torch.testing.assert_close(torch.linalg.svdvals(matrix.grad.float()), torch.ones(len(found.S)), atol=0.02, rtol=0)


def test_a_batch_of_several_ranks():
    matrices, loss = torch.stack([LOW, points(6, 5, seed=2)]).requires_grad_(), points(6, 5, seed=3)
    found = svd(matrices)
    (loss * (found.U @ found.projected @ found.Vh)).sum().backward()
    torch.testing.assert_close(matrices.grad[1], loss)
    u, _, vh = torch.linalg.svd(LOW)
    torch.testing.assert_close(matrices.grad[0], loss - u[:, 2:] @ u[:, 2:].mT @ loss @ vh[2:].mT @ vh[2:])


def test_another_solver_and_copies_with_gradients():
    matrix = points(600, 300)
    torch.testing.assert_close(svd(matrix, 3, Eigh()).S, torch.linalg.svdvals(matrix)[:3])
    with pytest.raises(RuntimeError, match=r"detach\(\) them"):
        copy.deepcopy(svd(matrix[:4, :3].clone().requires_grad_()))


def test_signs_and_what_has_no_gradient():
    u = svd(points(9, 6)).U
    assert (u.gather(0, u.abs().argmax(0, keepdim=True)) > 0).all()
    with pytest.warns(DegeneracyWarning, match="choice of basis"):
        svd(ORTHOGONAL.clone().requires_grad_()).U[0, 0].backward()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_few_triplets_of_large_matrices_to_second_order(is_sparse):
    dense = points(800, 30) * (points(800, 30, seed=1) > 1)
    index, loss, step = dense.nonzero().mT, points(800, 30, seed=2), points(800, 30, seed=3)[dense != 0]

    def both_orders(low_rank):
        values = dense[dense != 0].requires_grad_()
        matrix = torch.zeros_like(dense).index_put(tuple(index), values)
        if is_sparse and low_rank is ours:
            matrix = torch.sparse_coo_tensor(index, values, dense.shape, check_invariants=True)
        found = low_rank(matrix)
        (first,) = torch.autograd.grad((loss * found).sum(), values, create_graph=True)
        return first.detach(), torch.autograd.grad((first * step).sum(), values)[0]

    def ours(matrix):
        return cube(svd(matrix, 3))

    def theirs(matrix):
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        return (u[:, :3] * s[:3] ** 3) @ vh[:3]

    torch.testing.assert_close(both_orders(ours), both_orders(theirs), rtol=1e-6, atol=1e-6)
