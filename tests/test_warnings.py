"""Every warning names the line of the user's file that led to it, whatever lies between that line and this library."""

import runpy
import sys
import threading
import warnings

import pytest
import torch

from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.support.checks import ConvergenceWarning, DegeneracyWarning, GraphWarning

OURS = (ConvergenceWarning, DegeneracyWarning, GraphWarning)
START = """
import functools
import torch
from torch_lapeig import *
from torch_lapeig import sklearn as estimators
from torch_lapeig.eigen import ChebyshevSubspace, component_eigenpairs
from torch_lapeig.losses import spectral_loss
from torch_lapeig.pyg import AddLaplacianPE

torch.manual_seed(0)
near = torch.rand(20, 3, dtype=torch.float64)
parts = torch.cat([near, near + 1000])  # two components
many = torch.rand(300, 3, dtype=torch.float64)
alone = torch.cat([near, near[:1] + 1000])  # a point without neighbours within a radius
copies = near[:2].repeat_interleave(10, 0)  # most edges have length zero
far = near[:2] + 1e8
circle = torch.arange(12).double() * torch.pi / 6
ring = Laplacian(knn_graph(torch.stack([circle.cos(), circle.sin()], 1), 2))
edges = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])  # two copies of one edge
hasty = ChebyshevSubspace(max_iterations=0)
weight = ring.graph.weight.clone().requires_grad_()
second = lambda: eigenpairs(Laplacian(ring.graph.with_weight(weight)), 3).vectors[:, 1]  # λ₂ = λ₃
"""
# By entry point, code whose last line is to be named, or the line that says so.
CALLS = {
    "eigenmaps": "LaplacianEigenmaps(2, KNN(4))(parts)",
    "eigenmaps.fit": "LaplacianEigenmaps(2, KNN(4)).fit(parts)",
    "eigenmaps.transform": "layer = LaplacianEigenmaps(2, KNN(4)).fit(near)\nlayer.transform(far)",
    "eigenmaps, isolated": "LaplacianEigenmaps(2, Radius(2.0))(alone)",
    "clustering": "SpectralClustering(2, Radius(2.0))(alone)",
    "clustering.transform": "layer = SpectralClustering(2, KNN(4)).fit(near)\nlayer.transform(far)",
    "clustering.predict": "layer = SpectralClustering(2, KNN(4)).fit(near)\nlayer.predict(far)",
    "isomap.transform": "layer = Isomap(2, Radius(2.0)).fit(near)\nlayer.transform(far)",
    "lle": "LLE(2, KNN(4))(parts)",
    "mds.fit": "MDS(2, solve=hasty).fit(many)",
    "mds.out_of_sample": "MDS(2, solve=hasty).out_of_sample(many, near)",
    "kernel pca": "KernelPCA(2, solve=hasty)(many)",
    "eigenpairs": "eigenpairs(Laplacian(knn_graph(many, 5)), 3, hasty)",
    "component_eigenpairs": "component_eigenpairs(knn_graph(many, 5), 3, solver=hasty)",
    "backward": "loss = second() @ circle\nloss.backward()",
    "torch.autograd.grad": "loss = second() @ circle\ntorch.autograd.grad(loss, weight)",
    "weights": "HeatKernel()(copies, knn_graph(copies, 3))",
    "smoothness": "LaplacianSmoothness(KNN(3), HeatKernel())(near, copies)",
    "spectral loss": "SpectralLoss(KNN(3), HeatKernel())(near, copies)",
    "edge index": "Graph.from_edge_index(edges)",
    "encoding": "laplacian_positional_encoding(edges, 2, 1)",
    "AddLaplacianPE": (
        "from torch_geometric.data import Data\nfrom torch_geometric.transforms import Compose\n"
        "transform, data = Compose([AddLaplacianPE(1)]), Data(edge_index=edges, num_nodes=2)\ntransform(data)"
    ),
    "SpectralEmbedding": "estimators.SpectralEmbedding(n_neighbors=4).fit_transform(parts.numpy())",
    "SpectralClustering": ("model = estimators.SpectralClustering(2).fit(near.numpy())\nmodel.predict(far.numpy())"),
    "affinities": "estimators.SpectralClustering(2, affinity='precomputed').fit(torch.ones(5, 5).tril().numpy())",
    "Isomap": "estimators.Isomap().fit(parts.numpy())",
    "LocallyLinearEmbedding": "estimators.LocallyLinearEmbedding(n_neighbors=4).fit_transform(parts.numpy())",
    # What may lie between the line and the library.
    "sequential": ("network = torch.nn.Sequential(torch.nn.Identity(), LaplacianEigenmaps(2, KNN(4)))\nnetwork(parts)"),
    "hooks": (
        "layer = LaplacianEigenmaps(2, KNN(4))\nlayer.register_forward_hook(lambda *_: None)\n"
        "torch.no_grad()(functools.partial(layer))(parts)"
    ),
    "pipeline": (
        "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler\n"
        "model = make_pipeline(StandardScaler(), estimators.SpectralEmbedding(n_neighbors=4))\n"
        "model.fit_transform(parts.numpy())"
    ),
    "cross validation": (  # by joblib
        "from sklearn.linear_model import LinearRegression\nfrom sklearn.model_selection import cross_val_score\n"
        "from sklearn.pipeline import make_pipeline\n"
        "model = make_pipeline(estimators.LocallyLinearEmbedding(n_neighbors=4), LinearRegression())\n"
        "mixed = torch.cat([near[::2], near[::2] + 1000, near[1::2], near[1::2] + 1000]).numpy()\n"
        "cross_val_score(model, mixed, mixed[:, 0], cv=2)"
    ),
    "compiled": (
        "torch._dynamo.reset()\nnetwork = torch.compile(LaplacianEigenmaps(2, KNN(4)), backend='eager')\nnetwork(parts)"
    ),
    "contextlib": (
        "import contextlib\n@contextlib.contextmanager\ndef measured():\n    yield\n"
        "measured()(LaplacianEigenmaps(2, KNN(4)))(parts)"
    ),
    "numpy": (
        "import numpy as np\n"
        "np.apply_along_axis(lambda row: LaplacianEigenmaps(2, KNN(4))(parts)[0].numpy(), 0, np.zeros(3))"
    ),
    "thread": (
        "import threading\n"
        "thread = threading.Thread(target=lambda: (LaplacianEigenmaps(2, KNN(4))(parts), None))  # here\n"
        "thread.start(); thread.join()"
    ),
    "own thread of autograd": """
class Deep(torch.autograd.Function):  # autograd takes another thread for each 60th backward inside a backward
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            start = torch.ones((), requires_grad=True)
            loss = Deep.apply(start, ctx.depth - 1) if ctx.depth else second() @ circle
        loss.backward()  # here
        return gradient, None
for depth in range(50, 70):
    Deep.apply(torch.ones((), requires_grad=True), depth).backward()
""",
}


def run(path, source):
    """Warnings of this library that a file raises, as (file, line); and the line that is to be named."""
    path.write_text(source)
    lines = source.rstrip().splitlines()
    expected = next((i for i, line in enumerate(lines, 1) if line.endswith("# here")), len(lines))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runpy.run_path(str(path))
    return {(w.filename, w.lineno) for w in caught if issubclass(w.category, OURS)}, expected


@pytest.mark.parametrize("name", CALLS)
def test_the_line_is_the_users(name, tmp_path):
    found, expected = run(tmp_path / "script.py", START + CALLS[name])
    assert found == {(str(tmp_path / "script.py"), expected)}


@pytest.mark.parametrize("name", ["torch_lapeig_extras", "torchlike", "sklearn_tools", "lightning2"])
def test_a_module_whose_name_begins_like_one_of_ours_is_the_users(name, tmp_path, monkeypatch):
    source = START + "def embed():\n    return LaplacianEigenmaps(2, KNN(4))(parts)  # here\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    found, _ = run(tmp_path / "script.py", f"import {name}\n{name}.embed()\n")
    sys.modules.pop(name)
    assert found == {(str(tmp_path / f"{name}.py"), len(source.splitlines()))}


def test_a_module_that_is_the_function_of_a_thread_warns():
    layer, x = LaplacianEigenmaps(2, KNN(2)), torch.arange(10, dtype=torch.float64)[:, None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=layer, args=(x + x // 5 * 1000,))
        thread.start()
        thread.join()
    assert [w.category for w in caught] == [GraphWarning]


def test_a_line_warns_once_and_each_line_does(tmp_path):
    """The registry of Python's default filter is that of the user's file."""
    lines = ["for _ in range(3):", "    LaplacianEigenmaps(2, KNN(4))(parts)", "LaplacianEigenmaps(2, KNN(4))(parts)"]
    (tmp_path / "script.py").write_text(START + "\n".join(lines))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        runpy.run_path(str(tmp_path / "script.py"))
    first = len(START.splitlines()) + 2
    assert [w.lineno for w in caught] == [first, first + 1]
