"""Files as arrays, sparse matrices or tables; pickles are never loaded."""

from __future__ import annotations

import difflib
import gzip
import pickle
import warnings
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from scipy import sparse
from scipy.io import mmread

from torch_lapeig.command.tables import InputError, read_text

Found = Any  # an array, a sparse matrix in CSR form, a DataFrame whose index numbers the rows, or a column of one

PICKLED = b"\x80"  # first byte of a pickle; older NumPy reports any unreadable file as pickled
GZIPPED = b"\x1f\x8b"
NO_TEXT = {
    b"PK\x03\x04": "an Excel workbook or an archive",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"<": "a web page",
    b"{": "JSON",
    b"[[": "JSON",
}
MAGIC = {b"\x93NUMPY": ".npy", b"PAR1": ".parquet", b"\x89HDF": ".h5ad", b"%%MatrixMarket": ".mtx"}
BINARY = (".npy", ".npz", ".parquet", ".h5ad", ".pt")
LIBRARIES = {".parquet": "pandas pyarrow", ".h5ad": "anndata"}
SHOWN_NAMES = 12  # in a message


class Request(NamedTuple):
    """File to read: ``member`` names an array or a column in it, ``expected`` is its number of labels, if of any."""

    path: Path
    member: str
    wishes: Namespace
    notes: list[str]
    expected: int | None


def read(given: str, wishes: Namespace, notes: list[str], expected: int | None = None) -> Found:
    """Return what a file holds.

    Args:
        given: path; ``points.npz:x`` is the array x of several, ``table.csv:x`` a column.
        wishes: options of the command line, of which some say how text is read.
        notes: gets a line for each thing that was decided on the way.
        expected: number of labels that the file should have; None for points.

    Raises:
        InputError: there is no such file, or it is damaged, of another kind, empty, or holds Python objects.
    """
    path, member = path_and_member(given)
    _check_file(path)
    ending = _ending(path)
    try:
        kind = _kind(path, ending)
        found = READERS[kind](Request(path, member, wishes, notes, expected))
    except InputError:
        raise
    except ImportError as error:
        needed = LIBRARIES.get(kind, "'torch-lapeig[embed]'")
        raise InputError(f"{path}: {kind} is read by a library that is not here: pip install {needed}") from error
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error, BadZipFile, pickle.UnpicklingError) as error:
        if "Object arrays" in str(error) or isinstance(error, pickle.UnpicklingError) or _begins(path, PICKLED):
            raise InputError(
                f"{path} holds Python objects, which are not loaded since that can run code: save numbers, such as "
                "np.save(file, x.astype(float))"
            ) from error
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if getattr(getattr(found, "dtype", None), "names", None):  # a table of NumPy's
        import pandas

        found = pandas.DataFrame(found)
    is_table = hasattr(found, "columns")
    return found[known(member, found.columns, given)] if is_table and member else found


def _check_file(path: Path) -> None:
    """Raise `InputError` unless a path is of a file, with the nearest name."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it")
    if not path.is_file():
        names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, 1)
        raise InputError(f"{path}: there is no such file" + (f", did you mean {near[0]!r}?" if near else ""))


def _ending(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _kind(path: Path, ending: str) -> str:
    """Return the ending of files of a kind, by the first bytes where these tell it, or else by the name."""
    with _opened(path) as file:
        start: bytes = file.read(1000)
    for magic, kind in MAGIC.items():
        if start.startswith(magic):
            return kind
    if ending != ".pt" and start.startswith(PICKLED):
        raise pickle.UnpicklingError
    is_text = b"\0" not in start
    if start and is_text and ending in BINARY and not start.startswith(PICKLED):
        raise InputError(f"{path} is text, although its name says otherwise: if it is a table, name it .csv")
    if ending in READERS:
        return ending
    other = next((kind for magic, kind in NO_TEXT.items() if start.startswith(magic)), None)
    if is_text and other is None:
        return ".csv"
    raise InputError(
        f"{path}: the file must end in {', '.join(READERS)}, in one of these and .gz, or be text, got "
        f"{other or repr(ending or 'no ending')}: save it as one of them, a table as .csv"
    )


def is_file(given: str) -> bool:
    """Return whether `read` would find a file."""
    return path_and_member(given)[0].is_file()


def path_and_member(given: str) -> tuple[Path, str]:
    """Return a path, and the name of an array or a column in it."""
    before, colon, after = given.rpartition(":")
    return (Path(before), after) if colon and not Path(given).is_file() else (Path(given), "")


def known(name: str, names: Iterable[Any], given: str) -> str:
    """Return a name that is among others; raise `InputError` with the nearest otherwise."""
    names = [str(known) for known in names]
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1, 0.5)
    listed = ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
    raise InputError(f"{given} has no {name!r}: " + (f"did you mean {near[0]!r}?" if near else f"it has {listed}"))


def _opened(path: Path) -> Any:
    """Open a file, uncompressed by its first bytes, whatever its name says."""
    return gzip.open(path) if _begins(path, GZIPPED) else path.open("rb")


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _text(request: Request) -> Found:
    with _opened(request.path) as file:
        content: bytes = file.read()
    for start, kind in NO_TEXT.items():
        if content.startswith(start):
            raise InputError(f"{request.path} is {kind}, although its name says otherwise: save it as .csv")
    return read_text(str(request.path), content, request.wishes, request.notes, request.expected)


def _npy(request: Request) -> Found:
    with _opened(request.path) as file:
        return np.load(file, allow_pickle=False)


def _npz(request: Request) -> Found:
    """Return the one array of an archive, the named one, or a sparse matrix of SciPy's."""
    with request.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if not {"format", "shape", "data"} <= set(archive.files):
            return np.asarray(archive[_chosen(request, archive.files)])
    return sparse.load_npz(request.path).tocsr()


def _chosen(request: Request, names: list[str]) -> str:
    """Return the name of the only array of a file, or of the one that is asked for."""
    if request.member or len(names) == 1:
        return known(request.member or names[0], names, str(request.path))
    raise InputError(f"{request.path} holds the arrays {', '.join(names) or 'none'}: write {request.path}:NAME")


def _torch(request: Request) -> Found:
    with _opened(request.path) as file:
        found = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(found, Mapping):
        tensors = {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}
        found = tensors[_chosen(request, list(tensors))]
    if not isinstance(found, torch.Tensor):
        raise InputError(f"{request.path} must hold a tensor, or tensors by name, got {type(found).__name__}")
    found = found.detach().to_dense()
    return (found.float() if found.dtype == torch.bfloat16 else found).numpy()


def _matrix_market(request: Request) -> Found:
    with _opened(request.path) as file, warnings.catch_warnings():
        # SciPy 1.18 announces that it will give arrays, which older versions cannot be asked for.
        warnings.simplefilter("ignore", DeprecationWarning)
        found = mmread(file)
    return found.tocsr() if sparse.issparse(found) else found


def _parquet(request: Request) -> Found:
    import pandas

    frame = pandas.read_parquet(request.path).reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    return frame


def _h5ad(request: Request) -> Found:
    """Return the matrix of which scanpy takes neighbours, another one of ``obsm``, or a column of ``obs``."""
    import anndata

    data, names = anndata.read_h5ad(request.path), str(request.path)
    if request.member.startswith("obs/"):
        return data.obs[known(request.member.removeprefix("obs/"), data.obs, names)]
    if not request.member and "X_pca" not in data.obsm:
        return data.X.tocsr() if sparse.issparse(data.X) else np.asarray(data.X)
    chosen = known(request.member or "X_pca", data.obsm, names)
    request.notes.append(f"{names}: points are the rows of obsm[{chosen!r}]; {names}:NAME takes another")
    return np.asarray(data.obsm[chosen])


READERS: dict[str, Callable[[Request], Found]] = {
    ".csv": _text,
    ".tsv": _text,
    ".txt": _text,
    ".npy": _npy,
    ".npz": _npz,
    ".mtx": _matrix_market,
    ".parquet": _parquet,
    ".h5ad": _h5ad,
    ".pt": _torch,
}
