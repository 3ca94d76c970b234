"""The data of the experiments are what their names say."""

import gzip

import numpy as np

from experiments.data import bars, mnist_test

MNIST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


def test_bars_are_bars():
    images, vertical = bars(40, 20, 0, length=8, width=2)
    assert (images.sum((1, 2)) == 16).all()
    rows, columns = images.any(2).sum(1), images.any(1).sum(1)
    assert (rows == np.where(vertical, 8, 2)).all()
    assert (columns == np.where(vertical, 2, 8)).all()
    assert vertical.sum() == 20


def test_idx_files_are_read(tmp_path):
    header = bytes(16)
    (tmp_path / MNIST[0]).write_bytes(gzip.compress(header + bytes(783) + b"\xff" + bytes(784)))
    (tmp_path / MNIST[1]).write_bytes(gzip.compress(bytes(8) + b"\x07\x03"))
    pixels, labels = mnist_test(tmp_path)
    assert pixels.shape == (2, 784)
    assert pixels[0].nonzero().flatten().tolist() == [783]
    assert pixels.max() == 1
    assert labels.tolist() == [7, 3]
