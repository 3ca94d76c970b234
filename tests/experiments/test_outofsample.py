"""The experiment on new points: its alignment and splits by hand, and what a run writes and resumes."""

import numpy as np
from scipy.spatial.distance import pdist, squareform

from experiments import outofsample
from experiments.outofsample import METHODS, Sample, affine, compared, draw_split
from problems import short_form


def sample_of(points, neighbors=8):
    distances = squareform(pdist(points))
    return Sample(points, distances, neighbors, 0, 0.1 * distances.max())


def split_of(sample, fraction=0.2, left_out=6):
    return draw_split(sample, fraction, left_out, np.random.default_rng(1))


def test_alignment_is_exact_for_affine_copies():
    generator = np.random.default_rng(0)
    y, new = generator.standard_normal((30, 2)), generator.standard_normal((5, 2))
    matrix, shift = np.array([[0.0, -2.0], [0.5, 1.0]]), np.array([3.0, -7.0])
    align = affine(y, y @ matrix + shift)
    assert np.allclose(align(y), y @ matrix + shift, atol=1e-12)
    assert np.allclose(align(new), new @ matrix + shift, atol=1e-12)


def test_mds_of_the_plane_in_two_dimensions_has_neither_error_nor_variability():
    plane = np.random.default_rng(0).uniform(size=(80, 2)) @ np.array([[3.0, 0.0], [1.0, 1.0]])
    of_plane = compared(sample_of(plane), "mds", split_of(sample_of(plane)))
    assert max(of_plane["variability"] + of_plane["error"]) < 1e-9
    solid = np.random.default_rng(0).uniform(size=(80, 3))
    of_solid = compared(sample_of(solid), "mds", split_of(sample_of(solid)))
    assert min(np.mean(of_solid["variability"]), np.mean(of_solid["error"])) > 1e-3


def test_a_split_has_its_parts():
    split = split_of(sample_of(np.random.default_rng(0).uniform(size=(120, 2))), fraction=0.2, left_out=7)
    first, second = split.halves
    assert len(first) == len(second) == 20  # of 100: a fifth
    assert sorted([*split.fixed, *first, *second]) == list(range(120))
    assert set(split.left_out) <= set(split.fixed)
    assert len(split.left_out) == 7
    assert split.train(0).tolist() == sorted([*split.fixed, *first])
    assert set(split.train(1, split.left_out[0])) == {*split.fixed, *second} - {split.left_out[0]}


def test_complete_gaussian_is_the_papers_kernel_and_formula():
    """Eigenvectors of K_ij / √(k_i k_j), the point itself among its neighbours, and the formula for new points."""
    sample = sample_of(np.random.default_rng(0).uniform(size=(40, 2)))
    train, new = np.arange(38), 39
    rows, place = outofsample.embed(sample, "gaussian", train, train, [new])
    kernel = outofsample.gaussian(sample.distances, sample.sigma)
    degree = kernel[:38, :38].sum(1)
    values, vectors = np.linalg.eigh(kernel[:38, :38] / np.sqrt(np.outer(degree, degree)))
    columns = vectors[:, [-2, -3]]
    formula = kernel[new, :38] / np.sqrt(kernel[new, :38].sum() * degree) @ columns / values[[-2, -3]]
    expected = np.vstack([columns / np.sqrt(degree)[:, None], formula / np.sqrt(kernel[new, :38].sum())])
    expected *= np.sign((expected[:38] * rows).sum(0))
    assert np.allclose(np.vstack([rows, place]), expected, atol=1e-8)


def quick(folder):
    return short_form("outofsample", folder, "--sets=[swiss_roll]", "--points=60", "--neighbors=8")


def test_quick_run_writes_everything_and_resumes(tmp_path, monkeypatch, capsys):
    metrics = quick(tmp_path)
    assert "equal at" in capsys.readouterr().out
    about = metrics["sets"]["swiss_roll"]
    assert [about[key] for key in ("points", "copies_dropped", "neighbors", "splits_redrawn")] == [60, 0, 8, 0]
    assert about["sigma"]["used"]["components"] == 1
    assert about["sigma"]["as_given"]["components"] > 50  # most exp(−d²/2σ²) are 0
    assert (tmp_path / "swiss_roll.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "swiss_roll.pdf").read_bytes().startswith(b"%PDF")
    for method in METHODS:
        one = metrics["curves"]["swiss_roll"][method]
        assert np.isfinite([one[key] for key in ("difference", "half_width", "error", "variability")]).all()
        assert min(one["error"] + one["variability"]) > 0
    cells = tmp_path / "cells.jsonl"
    lines = cells.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 3 * 2  # what was asked for; fractions, repeats
    cells.write_text("".join(lines[:6]))
    calls = []
    monkeypatch.setattr(outofsample, "compared", lambda *given: calls.append(given) or compared(*given))
    assert quick(tmp_path)["curves"] == metrics["curves"]
    assert len(calls) == len(METHODS)
