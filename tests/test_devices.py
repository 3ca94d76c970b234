"""Demands of an accelerator on the library, on a pretended device: see benchmarks/pretended.py."""

import threading
from functools import partial

import pytest
import torch

import torch_lapeig as tl
from benchmarks import pretended
from problems import points, setting, swiss_roll
from torch_lapeig.eigen import ChebyshevSubspace, FunctionOperator, Lobpcg
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.methods import LLE
from torch_lapeig.support import precision

DEVICE = pretended.NAME


@pytest.fixture
def seen():
    with pretended.device() as counts:
        yield counts


@pytest.fixture
def settings():
    """The precision of products is put back, whatever a test sets."""
    yield
    torch.set_float32_matmul_precision("highest")
    for product in (*precision.PRODUCTS, torch.backends) if precision.PRODUCTS else ():
        product.fp32_precision = "none"


def state():
    """All that torch says, or refuses to say, about float32 products."""
    found = [product.fp32_precision for product in precision.PRODUCTS]
    for read in (torch.get_float32_matmul_precision, lambda: torch.backends.cuda.matmul.allow_tf32):
        try:
            found.append(read())
        except RuntimeError:
            found.append("refused")
    return found


by_older = partial(torch.set_float32_matmul_precision, "medium")
INTERFACES = {"older": by_older, "oldest": partial(setattr, torch.backends.cuda.matmul, "allow_tf32", True)}
if precision.PRODUCTS:
    INTERFACES["newer"] = partial(setattr, torch.backends.cuda.matmul, "fp32_precision", "tf32")
    INTERFACES["newer, for all"] = partial(setattr, torch.backends, "fp32_precision", "tf32")


class TestPrecision:
    @pytest.mark.parametrize("reduce", INTERFACES.values(), ids=INTERFACES)
    def test_reduced_products_enter_no_search_and_no_solve(self, reduce, seen, settings):
        x = points(300, 5, dtype=torch.float32).to(DEVICE).requires_grad_()
        reduce()
        before = state()
        network = x @ torch.eye(5, device=DEVICE)
        assert seen.rounded.total() == 1  # what the user asked for
        y = tl.LaplacianEigenmaps(3, tl.KNN(6), tl.HeatKernel("median"), solve=ChebyshevSubspace())(network)
        assert state() == before
        y.square().sum().backward()
        assert state() == before
        assert seen.rounded.total() == 2, seen.rounded  # and its derivative

    def test_threads_that_overlap(self, settings):
        """The first call sets the precision, the last one puts it back, and calls of others in between have it."""
        by_older()
        before, inside, leave = state(), threading.Event(), threading.Event()
        found = {}

        def slow_rule(x, mask=None):
            inside.set()
            leave.wait(5)
            found["slow"] = state()
            return tl.knn_graph(x, 5)

        slow = threading.Thread(target=lambda: tl.LaplacianEigenmaps(2, slow_rule)(points(30, 2)))
        slow.start()
        inside.wait(5)
        nearest_neighbors(points(20, 2), 3)
        found["between"] = state()
        leave.set()
        slow.join()
        products = len(precision.PRODUCTS) or 1
        assert precision.IEEE.issuperset(found["between"][:products] + found["slow"][:products])
        assert state() == before

    def test_a_backward_that_fails_leaves_nothing_behind(self, settings):
        by_older()
        before = state()
        y = tl.LaplacianEigenmaps(2, tl.KNN(5))(points(30, 2).requires_grad_())

        def fail(*_):
            raise RuntimeError("on purpose")

        y.grad_fn.register_hook(fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            y.sum().backward()
        assert state() == before


class TestSparseProducts:
    def test_values_are_contiguous(self, seen):
        graph = tl.knn_graph(points(40, 2), 4).to(DEVICE)
        y = torch.ones(40, 3, device=DEVICE)
        ones = torch.ones((), device=DEVICE, dtype=torch.float64).expand(len(graph.weight))
        graph.pattern.matmul(ones, y.double())
        assert not seen.shaky

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_memory_begins_where_kernels_read(self, dtype, seen):
        """Items of a batch, of an odd number of nodes."""
        x = points(61, 3, batch=3, dtype=dtype).to(DEVICE)
        graph = tl.HeatKernel(1.0)(x, tl.KNN(5)(x))
        tl.eigenpairs(tl.Laplacian(graph), 3, Lobpcg())
        for operator in tl.Laplacian(graph).symmetric.items():
            operator.matmul(points(61, 3, batch=2, dtype=dtype).to(DEVICE)[1])
        assert not seen.shaky


def test_components_are_counted(seen):
    """LLE takes the largest label for the number of groups less one."""
    x = torch.cat([points(20, 2), points(20, 2, seed=1) + 100])
    pattern = tl.knn_graph(x, 4).to(DEVICE).pattern
    assert pattern.components(torch.ones(len(pattern), device=DEVICE)).unique().tolist() == [0, 1]
    with pytest.warns(tl.GraphWarning, match="here 2 groups"):
        LLE(1, tl.KNN(4)).fit(x.to(DEVICE))


@pytest.mark.parametrize("solver", [None, Lobpcg(), ChebyshevSubspace()])
def test_deterministic_algorithms(solver, seen):
    """Sums over groups are the same from run to run: no atomic addition, which CUDA refuses here."""
    with setting(torch.use_deterministic_algorithms, True, False):
        x = swiss_roll(300).to(DEVICE).requires_grad_()
        module = tl.LaplacianEigenmaps(2, tl.KNN(8), tl.HeatKernel("median"), solve=solver).fit(x)
        module(x).square().square().sum().backward()
        module.transform(x.detach()[:5] + 0.01)
    assert not seen.unstable


HEAT, K6 = tl.HeatKernel("median"), tl.KNN(6)
OF_POINTS = {
    "layer": tl.LaplacianEigenmaps(3, K6, HEAT),
    "new points": lambda x: tl.LaplacianEigenmaps(3, K6, HEAT).out_of_sample(x, x * 1.01)[1],
    "fit": lambda x: tl.LaplacianEigenmaps(3, K6, HEAT).fit(x).transform(x * 1.01),
    "dense": lambda x: tl.eigenpairs(x @ x.mT, 3, largest=True).vectors,
    "sparse": lambda x: tl.eigenpairs(tl.Laplacian(HEAT(x, K6(x))), 3).vectors,
    "mass": lambda x: tl.eigenpairs(tl.Laplacian(K6(x), "unnormalized"), 3, mass=1 + x[..., 0].square()).vectors,
    "function": lambda x: (
        tl.eigenpairs(FunctionOperator(lambda y, a: a @ (a.mT @ y), len(x), [x]), 3, largest=True).vectors
    ),
    "svd": lambda x: tl.svd(x, 2).U,
    "batch": lambda x: tl.eigenpairs(x.reshape(3, -1, 3) @ x.reshape(3, -1, 3).mT, 3, largest=True).vectors,
    "loss": lambda x: tl.laplacian_smoothness(x.square(), HEAT(x, K6(x))),
    "dense Laplacian": lambda x: tl.Laplacian(HEAT(x, K6(x))).to_dense(),
}


@pytest.mark.parametrize("name", OF_POINTS)
def test_without_float64(name):
    """What lies on a device without float64 is solved on the host, with the same derivatives of both orders."""

    def results(device):
        module = OF_POINTS[name]
        x = points(60, 3, dtype=torch.float32).to(device).requires_grad_()
        y = module(x)
        (g,) = torch.autograd.grad(y.square().square().sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x)
        found = [y.detach(), g.detach(), h]
        if name in ("layer", "sparse", "dense Laplacian"):  # torch itself fails for operations on such a device
            with torch.autograd.forward_ad.dual_level():
                dual = module(torch.autograd.forward_ad.make_dual(x.detach(), x.detach().square()))
                found.append(torch.autograd.forward_ad.unpack_dual(dual).tangent)
        assert {(part.device.type, part.dtype) for part in found} == {(device, torch.float32)}
        return [part.cpu() for part in found]

    expected = results("cpu")
    with pretended.device(lacks_float64=True):
        for ours, theirs in zip(results(DEVICE), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_without_float64_a_module_keeps_its_parameters():
    """Parameters, their gradients and what has been fitted lie on the device; a graph keeps its exact weights."""
    with pretended.device(lacks_float64=True):
        x = points(60, 3, dtype=torch.float32).to(DEVICE)
        module = tl.LaplacianEigenmaps(3, K6, tl.HeatKernel("median", learnable=True)).to(DEVICE)
        parameter = module.weights.log_factor
        assert module.fit(x) is module
        assert module.weights.log_factor is parameter
        module(x).square().square().sum().backward()
        assert {part.device.type for part in (parameter, parameter.grad, module.embedding_)} == {DEVICE}
        graph = tl.HeatKernel(1.0)(x, K6(x))
        assert graph.weight.device.type == DEVICE
        operator = tl.Laplacian(graph)
        before = tl.eigenpairs(operator, 3).values
        with torch.no_grad():
            graph.weight.mul_(2 * torch.ones_like(graph.weight))
            graph.weight[graph.pattern.row + graph.pattern.col < 40] *= 0.5
        assert not torch.equal(tl.eigenpairs(operator, 3).values.cpu(), before.cpu())
        matrix = (x @ x.mT).to_sparse().requires_grad_()
        values = tl.eigenpairs(matrix, 3, largest=True).values
        (gradient,) = torch.autograd.grad(values.sum(), matrix)
        assert values.device.type == gradient.device.type == DEVICE
        assert gradient.layout == torch.sparse_coo
