"""Functions on scanpy's neighbour graph: keys, a dense reference, scanpy itself where it is installed."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, csr_array

from problems import points
from torch_lapeig import DiffusionMap, Graph, HeatKernel, Precomputed, knn_graph
from torch_lapeig.anndata import diffmap, label_transfer, spectral


def cells(n=90, k=8):
    """An object like AnnData with the neighbours of random points, which are also its principal components."""
    pandas = pytest.importorskip("pandas")
    x = points(n, 4)
    affinity = HeatKernel()(x, knn_graph(x, k)).to_scipy()
    obs = pandas.DataFrame({"kind": np.where(x[:, 0] > 0, "b", "a")})
    return SimpleNamespace(obs=obs, obsm={"X_pca": x.numpy()}, uns={}, obsp={"connectivities": affinity})


@pytest.mark.parametrize("key", [None, "other"])
def test_diffmap_has_the_eigenpairs_of_the_symmetric_transitions(key):
    adata = cells()
    if key is not None:
        adata.obsp["theirs"] = adata.obsp.pop("connectivities")
        adata.uns["other"] = {"connectivities_key": "theirs"}
        affinity = adata.obsp["theirs"].toarray()
    else:
        affinity = adata.obsp["connectivities"].toarray()
    diffmap(adata, 7, key)
    q = affinity.sum(1)
    w = affinity / (q[:, None] * q)
    values, v = np.linalg.eigh(w / np.sqrt(w.sum(1)[:, None] * w.sum(1)))
    assert adata.obsm["X_diffmap"].dtype == adata.uns["diffmap_evals"].dtype == np.float32
    np.testing.assert_allclose(adata.uns["diffmap_evals"], values[::-1][:7], atol=1e-6)
    np.testing.assert_allclose(np.abs(adata.obsm["X_diffmap"]), np.abs(v[:, ::-1][:, :7]), atol=1e-5)
    assert adata.uns["diffmap_residuals"].max() < 1e-9
    diffmap(adata, 3, key, alpha=0)
    d = affinity.sum(1)
    plain = np.linalg.eigvalsh(affinity / np.sqrt(d[:, None] * d))
    np.testing.assert_allclose(adata.uns["diffmap_evals"], plain[::-1][:3], atol=1e-6)


@pytest.mark.parametrize("time", [2.0, np.inf])
def test_diffmap_writes_rows_of_a_time_and_columns_by_the_gap(time):
    adata, whole = cells(), cells()
    diffmap(adata, "eigengap", time=time, max_comps=8)
    diffmap(whole, 8, time=time)
    values = whole.uns["diffmap_evals"]
    k = adata.obsm["X_diffmap"].shape[1]
    assert k < 8
    assert k == 2 + np.argmax(values[1:7] - values[2:8])
    graph = Graph.from_scipy(adata.obsp["connectivities"])
    expected = DiffusionMap(7, Precomputed("affinity"), time=time)(graph).abs().numpy()
    np.testing.assert_allclose(np.abs(whole.obsm["X_diffmap_scaled"]), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.abs(adata.obsm["X_diffmap_scaled"]), expected[:, : k - 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adata.obsm["X_diffmap"], whole.obsm["X_diffmap"][:, :k], atol=1e-6)
    diffmap(small := cells(6, 3), "eigengap")  # of fewer cells than max_comps
    assert small.obsm["X_diffmap"].shape[1] <= 5


def test_a_copy_is_written_to_if_asked_for():
    adata = cells()
    adata.copy = lambda: copy.deepcopy(adata)
    for function, arguments, place in ((diffmap, (4,), "X_diffmap"), (spectral, (2,), "X_spectral")):
        written = function(adata, *arguments, copy=True)
        assert place in written.obsm
        assert place not in adata.obsm
        assert function(adata, *arguments) is None
        np.testing.assert_allclose(adata.obsm[place], written.obsm[place], atol=1e-6)
    assert "kind_transferred" in label_transfer(adata, "kind", copy=True).obs
    assert "kind_transferred" not in adata.obs


def test_dense_connectivities_are_those_of_a_sparse_matrix():
    """As `scanpy.pp.neighbors(method="gauss", knn=False)` leaves them."""
    found = []
    for turn in (lambda a: a, lambda a: a.toarray(), lambda a: a.toarray().astype(np.float32)):
        adata = cells()
        adata.obsp["connectivities"] = turn(adata.obsp["connectivities"])
        adata.obs["known"] = adata.obs["kind"].where(np.arange(90) % 6 == 0)
        diffmap(adata, 5)
        spectral(adata)
        label_transfer(adata, "known")
        found.append(adata)
    for adata in found[1:]:
        np.testing.assert_allclose(adata.uns["diffmap_evals"], found[0].uns["diffmap_evals"], atol=1e-6)
        for key in ("X_diffmap", "X_spectral"):
            np.testing.assert_allclose(adata.obsm[key], found[0].obsm[key], atol=1e-3)
        assert adata.obs["known_transferred"].equals(found[0].obs["known_transferred"])


@pytest.mark.parametrize("place", ["X", "X_other", "X_frame"])
def test_many_parts_lie_where_the_neighbours_were_computed(place):
    """Six pairs of cells on a line, in the order of the representation that the neighbours were computed from."""
    x = np.repeat([[0.0], [3.0], [1.0], [5.0], [2.0], [4.0]], 2, 0)
    uns = {"neighbors": {"params": {"use_rep": place}}}
    adata = SimpleNamespace(obs={}, obsm={"X_other": x}, X=csr_array(x), uns=uns)
    pandas = pytest.importorskip("pandas")
    adata.obsm["X_frame"] = pandas.DataFrame(x)
    adata.obsp = {"connectivities": csr_array(block_diag([1 - np.eye(2)] * 6))}
    spectral(adata, 1)
    middle = adata.obsm["X_spectral"][:, 0].reshape(6, 2).mean(1)[[0, 2, 4, 1, 5, 3]]
    assert (np.diff(middle) > 0).all() or (np.diff(middle) < 0).all()
    adata.obsm[place] = pandas.DataFrame({"gene": ["a"] * 12})
    if place != "X":
        with pytest.raises(TypeError, match=rf"adata.obsm\['{place}'\] must hold real numbers"):
            spectral(adata, 1)


@pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning")
def test_labels_are_carried_to_all_cells_that_a_path_reaches():
    adata = cells()
    known = adata.obs["kind"].where(np.arange(90) % 6 == 0)
    adata.obs["known"] = known
    label_transfer(adata, "known")
    found = adata.obs["known_transferred"]
    assert found.dtype == "category"
    assert (found.astype(object)[known.notna()] == known[known.notna()]).all()
    assert (found.astype(object) == adata.obs["kind"]).mean() > 0.75
    assert adata.obs["known_transferred_score"].between(0.5 - 1e-9, 1 + 1e-9).all()
    apart = adata.obsp["connectivities"].tolil()
    apart[:, 89] = apart[89, :] = 0
    adata.obsp["connectivities"] = apart.tocsr()
    adata.obs.loc[89, "known"] = None
    label_transfer(adata, "known", key_added="again")
    assert adata.obs["again"].isna().tolist() == [False] * 89 + [True]
    assert adata.obs["again_score"][89] == 0


@pytest.mark.parametrize("mark", [-1, "-1", "Unknown", "Unassigned"])
def test_cells_with_a_mark_have_no_label(mark):
    """The library's mark, that of scANVI, and one that the caller names are as a missing value."""
    adata = cells()
    known, numbers = np.arange(90) % 6 == 0, np.where(adata.obs["kind"] == "a", 0, 1)
    kinds = numbers if mark == -1 else numbers.astype(str).astype(object)
    adata.obs["marked"], adata.obs["known"] = np.where(known, kinds, mark), np.where(known, kinds, None)
    label_transfer(adata, "marked", unlabelled=mark if mark == "Unassigned" else ("Unknown",))
    label_transfer(adata, "known")
    assert (adata.obs["marked_transferred"].astype(str) == adata.obs["known_transferred"].astype(str)).all()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda adata: diffmap(torch.ones(3)), TypeError, "adata must be an AnnData, with obsp, obsm, uns and obs"),
        (lambda adata: diffmap(adata, 5, "theirs"), ValueError, "neighbors_key must be a key of uns, got 'theirs'"),
        (lambda adata: diffmap(adata, 91), ValueError, "n_comps must be at most the number of cells with neighbours"),
        (lambda adata: diffmap(adata, 0), ValueError, "n_comps"),
        (lambda adata: diffmap(adata, "gap"), ValueError, "n_comps must be one of 'eigengap', got 'gap'"),
        (lambda adata: diffmap(adata, "eigengap", max_comps=1), ValueError, "max_comps must be at least 2, got 1"),
        (lambda adata: diffmap(adata, time=-1), ValueError, "time must be a finite number of at least 0, got -1"),
        (lambda adata: diffmap(adata, alpha=2), ValueError, "alpha"),
        (lambda adata: label_transfer(adata, "type"), ValueError, "key must be .* obs, got 'type'; there are kind"),
        (lambda _: diffmap(SimpleNamespace(obs=0, obsm=0, obsp={}, uns={"n": {}}), 2, "n"), ValueError, "added='n'"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, says):
    with pytest.raises(error, match=says):
        call(cells())


@pytest.mark.filterwarnings("ignore")  # of scanpy
def test_scanpy_has_the_same_map_and_pseudotime():
    scanpy = pytest.importorskip("scanpy")
    ours, theirs = scanpy.datasets.pbmc68k_reduced(), scanpy.datasets.pbmc68k_reduced()
    diffmap(ours)
    scanpy.tl.diffmap(theirs)
    np.testing.assert_allclose(ours.uns["diffmap_evals"], theirs.uns["diffmap_evals"], atol=1e-6)
    np.testing.assert_allclose(np.abs((ours.obsm["X_diffmap"] * theirs.obsm["X_diffmap"]).sum(0)), 1, atol=1e-5)
    for adata in (ours, theirs):
        adata.uns["iroot"] = 0
        scanpy.tl.dpt(adata)
    np.testing.assert_allclose(ours.obs["dpt_pseudotime"], theirs.obs["dpt_pseudotime"], atol=1e-5)
