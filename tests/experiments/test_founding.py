"""The founding papers' maps: words of a corpus, shares of neighbours of a class, and what is not at hand."""

import zipfile

import numpy as np
import pytest

from experiments.founding import Points, at_hand, brown_words, purity
from problems import short_form, touches_border


def test_neighbours_of_words_are_counted_within_sentences(tmp_path):
    text = "\n\n\tThe/at dog/nn saw/vbd the/at man/nn ./.\n\n\tThe/at man/nn ,/, the/at saw/nn 1/2/cd saw/vbd\n"
    with zipfile.ZipFile(tmp_path / "brown.zip", "w") as archive:
        archive.writestr("brown/ca01", text)
        archive.writestr("brown/README", "the/at the/at the/at")
    words, classes, counts, frequency = brown_words(4, tmp_path)
    assert words == ["the", "saw", "man", "dog"]  # by frequency, then by name
    assert frequency.tolist() == [4, 3, 2, 1]
    assert classes == ["determiner", "verb", "noun", "noun"]
    the, saw, man, dog = range(4)
    expected = np.zeros((4, 8))
    for left, right in ((the, dog), (dog, saw), (saw, the), (the, man), (the, man), (the, saw)):
        expected[right, left] += 1
        expected[left, 4 + right] += 1
    np.testing.assert_array_equal(counts, expected)


def test_purity_is_a_share_of_points_that_are_not_bound():
    """On a line of six points with classes aabbbb, the first two bound to each other."""
    bound = np.eye(6, dtype=bool)
    bound[0, 1] = bound[1, 0] = True
    y = np.array([0.0, 1.1, 2.0, 2.8, 3.5, 4.1])[:, None]
    points = Points(y, list("aabbbb"), np.arange(6), bound)
    assert purity(y, points, 2).tolist() == [0, 0, 0.5, 1, 1, 1]  # the nearest of 2.0 are 2.8 and 1.1
    assert purity(y, points, 6) == pytest.approx([0, 0, 0.6, 0.6, 0.6, 0.6])  # all that are allowed: chance


def test_the_short_form_needs_no_file_and_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TORCH_LAPEIG_DATA", raising=False)
    found = short_form("founding", tmp_path)["speech"]["spectra"]
    assert found["points"] == 550
    assert found["eigenmaps"]["2-D"]["mean"] > found["chance"] + 0.1
    assert len(found["eigenmaps"]["2-D"]["seeds"]) == 32  # phones
    less = found["eigenmaps"]["2-D"]["mean"] - found["pca"]["2-D"]["mean"]
    assert found["pca"]["2-D"]["less"]["mean"] == pytest.approx(less)
    assert not touches_border(tmp_path / "founding-speech.png")
    assert [at_hand(name, tmp_path) for name in ("words", "speech", "faces")] == [False, True, False]
    assert "words is skipped" in capsys.readouterr().out
