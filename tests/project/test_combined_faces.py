"""The table of combinations at the faces for other libraries."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from combined import GRAPHS, K, magnetic
from scipy.sparse import csr_array
from test_combinations import close, heat, quietly, walk, wrong_cells

from problems import grams
from torch_lapeig import LaplacianSmoothness
from torch_lapeig.anndata import diffmap, label_transfer, spectral
from torch_lapeig.pyg import AddLaplacianPE, AddMagneticPE, AddSpectralFeatures
from torch_lapeig.sklearn import SpectralClustering, SpectralEmbedding, spectral_embedding


def data_of(made):
    graph = made.value.to_sparse()
    node = made.nodes.flatten().cumsum(0) - 1
    weight, edges = graph.weight, node[graph.edge_index]
    if type(made.value).__name__ == "DirectedGraph":
        edges, weight = edges[:, weight > 0], weight[weight > 0]
    data = {"edge_index": edges, "edge_weight": weight, "num_nodes": int(made.nodes.sum())}
    if made.lead:
        data |= {"batch": made.nodes.nonzero()[:, 0], "num_graphs": len(made.nodes)}
    return type("Data", (dict,), {"__getattr__": dict.get})(data)


def normalised(made):
    """Values and orthonormal vectors of L_sym of each item, without loops, which these encodings leave out."""
    w = made.matrix * (1 - torch.eye(made.matrix.shape[-1]))
    y, values = walk(type(made)(SimpleNamespace(similarity=None, shape=made.value.shape), set(), w))
    return y * w.sum(-1, keepdim=True).sqrt(), values


def laplacian_pe(made):
    found = AddLaplacianPE(K - 1, "pe", eigenvalues="values")(data_of(made))
    v, values = normalised(made)
    close(found["values"].reshape(-1, K - 1), values[:, 1:])
    if not made.kinds & {"components"}:  # whose zeros have any basis
        rows = v[..., 1:] * (made.nodes[..., None])
        for b, nodes in enumerate(made.nodes):
            close(grams(found.pe[made.nodes.nonzero()[:, 0] == b]), grams(rows[b][nodes]))


def features(made):
    found = AddSpectralFeatures(heat, K - 1, "heat")(data_of(made)).heat
    v, values = normalised(made)
    expected = (v.square() * torch.where(values.isinf(), 0, heat(values))[:, None]).sum(-1)
    close(found[:, 0], expected[made.nodes])


def magnetic_pe(made):
    found = AddMagneticPE(K, "pe", q=0.2)(data_of(made)).pe
    expected = magnetic(made.matrix, 0.2).function(torch.ones_like)
    y = torch.complex(found[:, :K], found[:, K:])
    for b, nodes in enumerate(made.nodes):
        own = y[made.nodes.nonzero()[:, 0] == b]
        close(own @ own.mH, expected[b][nodes][:, nodes])


def cells_of(made):
    pandas = pytest.importorskip("pandas")
    obs = pandas.DataFrame({"kind": [None] * made.matrix.shape[-1]})
    obs.loc[0, "kind"], obs.loc[3, "kind"] = "a", "b"
    return SimpleNamespace(obs=obs, obsm={}, uns={}, obsp={"connectivities": csr_array(made.matrix[0].numpy())})


def diffusion_of_cells(made):
    adata = cells_of(made)
    diffmap(adata, K)
    w = made.matrix[0]
    q = w.sum(1)
    q = torch.where(q > 0, q, 1)
    w = w / (q[:, None] * q)
    d = torch.where(w.sum(1) > 0, w.sum(1), 1)
    values = torch.linalg.eigvalsh(w / (d[:, None] * d).sqrt()).flip(0)
    close(torch.as_tensor(adata.uns["diffmap_evals"]).double(), values[:K], atol=1e-6)


def start_of_cells(made):
    adata = cells_of(made)
    spectral(adata)
    assert np.isfinite(adata.obsm["X_spectral"]).all()
    residuals = adata.uns["spectral_residuals"]  # infinite in columns that a component does not have
    assert residuals[np.isfinite(residuals)].max() < 1e-5


def labels_of_cells(made):
    adata = cells_of(made)
    label_transfer(adata, "kind", class_prior=None)
    found = adata.obs["kind_transferred"]
    assert found[0] == "a"
    assert found[3] == "b"


def sklearn_embedding(made):
    matrix = made.matrix[0].numpy()
    for given in (matrix, csr_array(matrix)):
        found = spectral_embedding(given, n_components=K - 1, random_state=0)
        model = SpectralEmbedding(K - 1, affinity="precomputed", random_state=0).fit(given)
        np.testing.assert_allclose(model.embedding_, found, atol=1e-7)
        v = normalised(type(made)(made.value, set(), (made.matrix + made.matrix.mT) / 2))[0][0]
        d = ((made.matrix[0] + made.matrix[0].mT) / 2).fill_diagonal_(0).sum(1, keepdim=True)
        y = v / torch.where(d > 0, d, 1).sqrt()
        if not made.kinds & {"components", "isolated"}:
            close(grams(torch.as_tensor(found).double()), grams(y[:, 1:]), atol=1e-6)


def sklearn_clusters(made):
    model = SpectralClustering(2, affinity="precomputed", random_state=0).fit(made.matrix[0].numpy())
    assert set(model.labels_) == {0, 1}


def smoothed(made):
    """A step of the callback's loss: the smoothness on the subgraph of a batch."""
    nodes = torch.arange(6)
    y = torch.linspace(0, 1, 12).double().reshape(6, 2)
    w = made.matrix[0][:6, :6]
    squares = torch.cdist(y, y).square()
    count = max(int((w * (1 - torch.eye(6)) > 0).sum()), 1)
    close(LaplacianSmoothness()(y, made.value.subgraph(nodes)), (w * squares).sum() / 2 / count)


OF_FACES = {"AddLaplacianPE": laplacian_pe, "AddSpectralFeatures": features, "AddMagneticPE": magnetic_pe}
OF_FACES |= {"anndata.diffmap": diffusion_of_cells, "anndata.spectral": start_of_cells}
OF_FACES |= {"anndata.label_transfer": labels_of_cells, "sklearn.SpectralEmbedding": sklearn_embedding}
OF_FACES |= {"sklearn.SpectralClustering": sklearn_clusters, "SmoothnessCallback": smoothed}
OF_ONE = ("anndata", "sklearn", "SmoothnessCallback")  # they take matrices of one graph


@quietly
@pytest.mark.parametrize("name", [name for name in GRAPHS if "Improved" not in name])
def test_graphs(name):
    one = not GRAPHS[name]().lead
    consumers = {key: face for key, face in OF_FACES.items() if one or not key.startswith(OF_ONE)}
    wrong = wrong_cells(GRAPHS[name]().kinds, consumers, lambda consume: consume(GRAPHS[name]()))
    assert not wrong, "\n".join(wrong)
