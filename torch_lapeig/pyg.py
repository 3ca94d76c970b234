"""Positional encodings as transforms for PyTorch Geometric, without importing it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen import MagneticLaplacian, Solve, Solver
from torch_lapeig.eigen.laplacian import NORMALIZATIONS, Normalization
from torch_lapeig.graph import DirectedGraph
from torch_lapeig.graph.graph import check_edge_index
from torch_lapeig.methods import positional
from torch_lapeig.methods.filters import Response, response_to, spectral_signature
from torch_lapeig.methods.module import check_solve
from torch_lapeig.support import checks

__all__ = ["AddLaplacianPE", "AddMagneticPE", "AddSpectralFeatures"]


class AddLaplacianPE:
    """Transform for PyTorch Geometric that adds `laplacian_positional_encoding` to data, or to each data of a list.

    The vectors are those of ``torch_geometric.transforms.AddLaplacianEigenvectorPE`` up to sign, and up to rotation
    where eigenvalues are equal, for undirected graphs without isolated nodes, which have zeros here. If a graph is too
    small for k columns, the last are zero. Graphs of a list or a ``torch_geometric.data.Batch`` are solved together.

    Args:
        k: number of columns, at least 1.
        attr_name: attribute ``(M, k)`` to add; None appends the columns to ``data.x``. Names with "index" or "batch" in
            them, and "face", are refused: PyTorch Geometric takes these for numbers of nodes or graphs.
        eigenvalues: name of an attribute ``(B, k)`` for the eigenvalues, B = 1 for one graph; None to leave them out.
        normalization, random_signs, solve: see `laplacian_positional_encoding`.

    >>> class Data(dict):  # in place of torch_geometric.data.Data
    ...     __getattr__, __copy__ = dict.get, lambda self: Data(self)
    >>> square = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
    >>> AddLaplacianPE(2, attr_name="pe")(Data(edge_index=square, num_nodes=4)).pe.shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        k: int,
        attr_name: str | None = "laplacian_eigenvector_pe",
        *,
        eigenvalues: str | None = None,
        normalization: Normalization = "symmetric",
        random_signs: bool = False,
        solve: Solve | Solver | None = None,
    ) -> None:
        for name, value in (("attr_name", attr_name), ("eigenvalues", eigenvalues)):
            checks.check_instance(value, name, (str, type(None)), "the name of an attribute, or None")
            if value == "face" or any(part in (value or "") for part in ("index", "batch")):  # numbered anew in a Batch
                raise ValueError(f"{name} must be without 'index' and 'batch', and not 'face', got {value!r}")
        checks.check_choice(normalization, "normalization", NORMALIZATIONS)
        self.k = checks.check_width(k, "k")
        check_solve(solve)
        self.attr_name, self.eigenvalues, self.normalization, self.solve = attr_name, eigenvalues, normalization, solve
        self.random_signs = checks.check_flag(random_signs, "random_signs")

    def __call__(self, data: Any) -> Any:
        """Return a shallow copy of the data, or of each in a list or tuple, with the encoding."""
        if not isinstance(data, (list, tuple)) and getattr(data, "batch", None) is None:
            part = DataParts.of(data)
            return self._with(data, *self._encode(part.edges, part.nodes, part.weight))
        items = list(data) if isinstance(data, (list, tuple)) else [data]
        if not items:
            return []
        parts = [DataParts.of(item) for item in items]
        counts = torch.tensor([(part.edges.shape[1], part.nodes, part.graphs) for part in parts])
        edges, nodes, graphs = counts.T
        _, first_nodes, first_graphs = (counts.cumsum(0) - counts).T
        edge_index = torch.cat([part.edges for part in parts], 1)
        item = torch.arange(len(items)).repeat_interleave(edges).to(edge_index)
        if ((edge_index < 0) | (edge_index >= nodes.to(edge_index)[item])).any():
            raise ValueError("edge_index must lie in [0, num_nodes) of its data")
        edge_index = edge_index + first_nodes.to(edge_index)[item]
        batch = first_graphs.repeat_interleave(nodes).to(edge_index)
        if any(part.batch is not None for part in parts):
            own = [batch.new_zeros(part.nodes) if part.batch is None else part.batch for part in parts]
            batch = batch + torch.cat(own)
        found = self._encode(edge_index, batch, torch.cat([part.weight for part in parts]))
        # Graphs without nodes at the end have no number in the batch.
        lacking = int(graphs.sum()) - len(found.values)
        values = torch.nn.functional.pad(found.values, (0, 0, 0, lacking), value=torch.inf).split(graphs.tolist())
        results = [*map(self._with, items, found.vectors.split(nodes.tolist()), values)]
        return results if isinstance(data, (list, tuple)) else results[0]

    def _encode(self, edge_index: Tensor, nodes: int | Tensor, weight: Tensor) -> positional.NodeEncoding:
        options: Any = {"normalization": self.normalization, "random_signs": self.random_signs, "solve": self.solve}
        return positional.laplacian_positional_encoding(edge_index, nodes, self.k, weight, **options)

    def _with(self, item: Any, vectors: Tensor, values: Tensor) -> Any:
        item = copy.copy(item)
        if self.attr_name is not None:
            item[self.attr_name] = vectors
        elif item.x is None:
            item.x = vectors
        else:
            columns = item.x[:, None] if item.x.ndim == 1 else item.x
            dtype = columns.dtype if columns.is_floating_point() else torch.result_type(columns, vectors)
            item.x = torch.cat([columns.to(dtype), vectors.to(columns.device, dtype)], -1)
        if self.eigenvalues is not None:
            item[self.eigenvalues] = values
        if getattr(item, "_slice_dict", None) is not None:  # by which a Batch of PyTorch Geometric takes itself apart
            nodes = item.batch.bincount(minlength=len(values)).cumsum(0).cpu()
            own = {self.attr_name or "x": torch.nn.functional.pad(nodes, (1, 0))}
            own |= {self.eigenvalues: torch.arange(len(values) + 1)} if self.eigenvalues else {}
            item._slice_dict, item._inc_dict = item._slice_dict | own, item._inc_dict | dict.fromkeys(own)
        return item

    def __repr__(self) -> str:
        arguments = (f"{name}={getattr(self, name)!r}" for name in inspect.signature(type(self)).parameters)
        return f"{type(self).__name__}({', '.join(arguments)})"


class AddMagneticPE(AddLaplacianPE):
    """Transform for PyTorch Geometric that adds eigenvectors of the `MagneticLaplacian` to directed graphs.

    Edges are arcs from the first node to the second one, each in its own direction only. The columns of each charge are
    the real parts of its k vectors, then their imaginary parts. Of each vector the entry of largest magnitude is real
    and positive. Else it is as `AddLaplacianPE`: lists are solved together, and small graphs have columns of zeros.

    Args:
        k: number of eigenvectors of each charge, at least 1; the first is among them.
        attr_name: attribute ``(M, 2k)`` to add, or ``(M, 2Qk)`` with Q charges; None appends the columns to ``data.x``.
        q, normalization: see `MagneticLaplacian`.
        eigenvalues: name of an attribute ``(B, k)`` or ``(B, Qk)``; None for none. solve: see `AddLaplacianPE`.

    >>> class Data(dict):  # in place of torch_geometric.data.Data
    ...     __getattr__, __copy__ = dict.get, lambda self: Data(self)
    >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> AddMagneticPE(2, "pe", q=[0.1, 0.2])(Data(edge_index=ring, num_nodes=4)).pe.shape
    torch.Size([4, 8])
    """

    def __init__(
        self,
        k: int,
        attr_name: str | None = "magnetic_eigenvector_pe",
        *,
        q: float | Sequence[float] | Tensor = 0.25,
        eigenvalues: str | None = None,
        normalization: Literal["symmetric", "unnormalized"] = "symmetric",
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(k, attr_name, eigenvalues=eigenvalues, normalization=normalization, solve=solve)
        MagneticLaplacian(DirectedGraph.from_dense(torch.zeros(1, 1)), q, normalization)  # checks both
        self.q = q

    def _encode(self, edge_index: Tensor, nodes: int | Tensor, weight: Tensor) -> positional.NodeEncoding:
        batch, sizes = positional.batch_of(nodes, edge_index)
        given, weight, count = weight.dtype, checks.half_to_float32(weight), torch.as_tensor(self.q).numel()
        vectors = weight.new_zeros(len(batch), 2 * count * self.k)
        values = weight.new_full((len(sizes), count * self.k), torch.inf)
        for graphs in positional.of_similar_size(sizes):
            chosen, edges, inside, at = positional.part_of_batch(graphs, edge_index, batch)
            graph = DirectedGraph.from_edge_index(edges, weight[inside], batch=at)
            laplacian = MagneticLaplacian(graph, self.q, self.normalization)  # type: ignore[arg-type]
            pairs = laplacian.eigenpairs(self.k, self.solve, fill=True)
            y = pairs.vectors.reshape(len(graphs), count, -1, self.k)
            columns = torch.cat([y.real, y.imag], -1).transpose(1, 2).flatten(2)
            vectors = vectors.index_copy(0, chosen, columns[graph.mask])
            values = values.index_copy(0, graphs, pairs.values.reshape(len(graphs), -1))
        return positional.NodeEncoding(vectors.to(given), values.to(given))


class AddSpectralFeatures(AddLaplacianPE):
    """Transform for PyTorch Geometric that adds `spectral_signature` of each graph, which no sign and no basis changes.

    Args:
        phi: response to eigenvalues, such as `torch_lapeig.methods.HeatResponse`; gets them in float64.
        k: number of eigenpairs after the first, at least 1. The first pair, λ = 0, takes part too.
        attr_name: attribute ``(M, m)`` to add; None appends the columns to ``data.x``.
        normalize: see `spectral_signature`. eigenvalues, normalization, solve: see `AddLaplacianPE`.

    >>> from torch_lapeig.methods import HeatResponse
    >>> class Data(dict):  # in place of torch_geometric.data.Data
    ...     __getattr__, __copy__ = dict.get, lambda self: Data(self)
    >>> square = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
    >>> data = Data(edge_index=square, num_nodes=4)
    >>> AddSpectralFeatures(HeatResponse([1.0, 2.0]), 3, "heat")(data).heat.shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        phi: Response,
        k: int,
        attr_name: str | None = "spectral_features",
        *,
        normalize: bool = False,
        eigenvalues: str | None = None,
        normalization: Normalization = "symmetric",
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(k, attr_name, eigenvalues=eigenvalues, normalization=normalization, solve=solve)
        self.phi = phi
        self.width = response_to(phi, torch.ones(1, 1, dtype=torch.float64)).shape[1]
        self.normalize = checks.check_flag(normalize, "normalize")
        self.columns = partial(spectral_signature, phi=phi, normalize=normalize)

    def _encode(self, edge_index: Tensor, nodes: int | Tensor, weight: Tensor) -> positional.NodeEncoding:
        given = edge_index, nodes, self.k, weight, self.normalization, self.solve
        return positional.columns_of_nodes(*given, self.columns, self.width)[0]


class DataParts(NamedTuple):
    """Attributes of a data object; reading one is slow, so each is read once."""

    edges: Tensor  # (2, E)
    weight: Tensor  # (E,), 1 if the data has none
    batch: Tensor | None  # the graph of each node, None for a single graph
    nodes: int
    graphs: int

    @classmethod
    def of(cls, item: Any) -> DataParts:
        """Return the attributes of a data object, checked except for the numbers in ``edges``."""
        edges, weight, batch = (getattr(item, name, None) for name in ("edge_index", "edge_weight", "batch"))
        if edges is None:
            raise ValueError(f"data must be homogeneous and have an edge_index, got {item!r}")
        check_edge_index(edges)
        weight = torch.ones(edges.shape[1], device=edges.device) if weight is None else weight
        checks.check_tensor(weight, "edge_weight")
        if weight.shape != edges.shape[1:]:
            got = f"{tuple(weight.shape)}{'; use edge_weight.flatten()' * (weight.numel() == edges.shape[1])}"
            raise ValueError(f"edge_weight must have shape ({edges.shape[1]},) to go with edge_index, got {got}")
        weight = weight if weight.is_floating_point() or weight.is_complex() else weight.float()
        if batch is None:
            return cls(edges, weight, None, checks.check_count(item.num_nodes, "num_nodes", 0), 1)
        checks.check_indices(batch, "batch")
        return cls(edges, weight, batch, len(batch), int(item.num_graphs))
