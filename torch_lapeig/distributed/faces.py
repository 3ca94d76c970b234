"""Methods and losses on points that several processes hold together."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor

from torch_lapeig.distributed.dtensors import as_given, equal_part, of_all, own_rows, part_of
from torch_lapeig.distributed.fits import ROWS, SMALL, ShardedFit, centres_or_axes
from torch_lapeig.distributed.graph import ShardedGraph, check_rule, sharded_graph
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import DistributedError, Ranks, in_words
from torch_lapeig.eigen import Eigenpairs, Laplacian
from torch_lapeig.losses import LaplacianSmoothness, SpectralLoss
from torch_lapeig.methods import LaplacianEigenmaps, SpectralClustering
from torch_lapeig.methods.module import Embedding, as_returned, like_given, match_dtype
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import ENTRY, State, check_like, entry_of, saved_fit

# Options that need the whole graph in one process, or equal random numbers in all; what to choose instead.
REFUSED = (
    ("components", "separate", '"joint" or "error"'),
    ("label_isolated", True, "False"),
    ("random_signs", True, "False"),
    ("reduction", "none", '"mean", "weighted_mean" or "sum"'),
)
KEPT = (*ROWS, *SMALL, ENTRY)  # of a fit, in a state dict


class Sharded(nn.Module):
    """Method or loss on one set of points; each process passes its own rows and receives their results.

    Every process of the group calls every method, with any number of rows, zero included, in any order. The answer
    equals that for all rows on one process. The loss of a training is the sum of the losses that the processes return,
    and rows get the gradient of the sum. Every process has all parameters, whose gradients are the part from its own
    rows: `sum_gradients` adds the parts.

    Args:
        module: a `LaplacianEigenmaps`, `SpectralClustering`, `LaplacianSmoothness` or `SpectralLoss`, whose graph is
            one of `KNN` or `Radius`; this module has its parameters.
        group: the processes: a process group, a dimension of a `DeviceMesh` (``mesh["shard"]``), a `Ranks`, or None for
            all of them; without `torch.distributed` only this process.
        timeout: maximum seconds that a process waits for the others.

    Rows have one dtype on all processes, and results that of one process: half precision is computed in float32. Rows
    may be a `DTensor` with the placement ``Shard(0)`` over the same processes; the result is then a `DTensor`, too.

    Attributes:
        labels_: int64 ``(n,)``, labels by `SpectralClustering` of the rows that this process passed to ``fit``.
        embedding_: ``(n, k)``, of the same rows. After loading a fit both belong to an equal part of all rows.
        eigenvalues_, residuals_: ``(k,)``; gap_: ``()``.

    The state of a module, fitted or not, loads into a `Sharded` of such a module, and the state of a `Sharded` into the
    module. A fit is part of ``state_dict``, with its rows as `DTensor` in equal parts, which
    `torch.distributed.checkpoint` saves. It loads on any number of processes, all of which call ``load_state_dict``:
    see ``room_for``.

    Raises: DistributedError: another process has raised, or has other arguments.

    >>> from torch_lapeig import KNN, LaplacianEigenmaps
    >>> x, model = torch.rand(200, 3, dtype=torch.float64), LaplacianEigenmaps(2, KNN(12))
    >>> torch.allclose(Sharded(model)(x), model(x))
    True
    >>> torch.allclose(Sharded(model).fit(x).transform(x[:5]), model(x)[:5])
    True
    """

    embedding_: Tensor
    labels_: Tensor
    cluster_centers_: Tensor
    cluster_axes_: Tensor

    def __init__(self, module: nn.Module, group: Any = None, *, timeout: float = 300.0) -> None:
        super().__init__()
        kinds = (LaplacianEigenmaps, SpectralClustering, LaplacianSmoothness, SpectralLoss)
        checks.check_instance(module, "module", kinds, f"one of {', '.join(kind.__name__ for kind in kinds)}")
        self.module: Any = module
        check_rule(self.module.neighbors)
        for name, value, others in REFUSED:
            if getattr(module, name, None) == value:
                raise ValueError(f"{name} must be {others} on several processes, got {value!r}")
        self.ranks = group if isinstance(group, Ranks) else Ranks(group, timeout=timeout)
        self._fit: ShardedFit | None = None
        self._kept: State = {}  # entries of the fit in a state dict

    def forward(self, *given: Tensor) -> Tensor:
        """Return rows ``(n, k)`` of this process's points ``(n, D)``, or the share ``()`` of a loss of ``(y, x)``."""
        if isinstance(self.module, (LaplacianSmoothness, SpectralLoss)):
            return self._loss(*given)
        return self.embed(*given).embedding

    @precision.full_precision
    def embed(self, x: Tensor) -> Embedding:
        """Return the result of ``forward`` with eigenvalues, residuals and eigengap: see `Embedding`."""
        with self.ranks.guard():
            points, graph = self._spread("embed", x, LaplacianEigenmaps, SpectralClustering)
            _, found, pairs = self._solve(points, graph)
            found = as_returned(found._replace(embedding=points.home(found.embedding)), x, pairs)
            return found._replace(embedding=as_given(found.embedding, x))

    @torch.no_grad()
    @precision.full_precision
    def fit(self, x: Tensor) -> Sharded:
        """Embed points, cluster them by `SpectralClustering`, keep the fit, and return the module."""
        with self.ranks.guard():
            points, graph = self._spread("fit", x, LaplacianEigenmaps, SpectralClustering)
            laplacian, found, pairs = self._solve(points, graph)
            is_njw = getattr(self.module, "variant", "") == "njw"
            nodes = {"train_vectors": pairs[-1].vectors if is_njw else found.embedding}
            nodes["train_weighting"] = self.module.weights.state(points.x, graph)
            nodes |= self.module._of_laplacian(laplacian)
            fit = ShardedFit(self.module, points, graph, nodes, found.eigenvalues)
            own = {"embedding_": found.embedding}
            small = {name + "_": getattr(found, name) for name in ("eigenvalues", "residuals", "gap")}
            if isinstance(self.module, SpectralClustering):
                name = "cluster_centers_" if self.module.assign_labels == "kmeans" else "cluster_axes_"
                small[name] = centres_or_axes(self.module, points, found.embedding, found.eigenvalues)
                own["labels_"] = self.module._labels_of(found.embedding, small[name])
            rows = fit.kept(own)
            self._keep(fit, rows, small, {name: as_given(points.home(y), x) for name, y in own.items()})
        return self

    def _keep(self, fit: ShardedFit, rows: State, small: State, own: State) -> None:
        self._fit, self._kept = fit, {**rows, **small}
        for name, value in {**small, **own}.items():
            setattr(self, name, value)

    def room_for(self, checkpoint: Any, prefix: str = "") -> dict[str, Any]:
        """Return a state dict of empty tensors of a checkpoint's sizes, for `torch.distributed.checkpoint`.

        Args:
            checkpoint: path of the folder, or a `StorageReader`.
            prefix: prefix of this module's names in the checkpoint, such as ``"model."`` for
                ``{"model": module.state_dict()}``.

        Raises: OSError: the checkpoint cannot be read. DistributedError: by another process, or theirs differs.

        >>> import tempfile, warnings
        >>> import torch.distributed.checkpoint as dcp
        >>> from torch_lapeig import KNN, LaplacianEigenmaps
        >>> x = torch.rand(60, 3)
        >>> module, fresh = (Sharded(LaplacianEigenmaps(2, KNN(9))) for _ in range(2))
        >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     _ = dcp.save({"model": module.fit(x).state_dict()}, checkpoint_id=folder)
        ...     state = {"model": fresh.room_for(folder, "model.")}
        ...     dcp.load(state, checkpoint_id=folder)
        >>> _ = fresh.load_state_dict(state["model"])
        >>> torch.allclose(fresh.transform(x[:5]), module.transform(x[:5]))
        True
        """
        saved: dict[str, Any] = {}

        def read() -> dict[str, Any]:
            reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(checkpoint)
            every = reader.read_metadata().state_dict_metadata
            saved.update({name: every.get(prefix + name) for name in KEPT})
            return {f"{name} of the checkpoint": getattr(found, "size", None) for name, found in saved.items()}

        with self.ranks.guard():
            self.ranks.agree("Sharded.room_for", read)
        state = {name: value for name, value in self.state_dict().items() if name not in KEPT}
        for name, found in saved.items():
            if isinstance(found, TensorStorageMetadata):
                size, device = list(found.size), "cpu" if name == ENTRY else self.ranks.device
                begin, end = part_of(self.ranks, size[0], self.ranks.rank) if name in ROWS else (0, 0)
                own = [end - begin, *size[1:]] if name in ROWS else size
                empty = torch.empty(own, dtype=found.properties.dtype, device=device)
                state[name] = of_all(empty, self.ranks, size[0]) if name in ROWS else empty
        return state

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._fit is not None:
            total = self._fit.points.offsets[-1]
            for name, value in self._kept.items():
                destination[prefix + name] = of_all(value, self.ranks, total) if name in ROWS else value
            destination[prefix + ENTRY] = entry_of(self.module)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool, *keys: list[str]
    ) -> None:
        missing_keys, unexpected_keys, error_msgs = keys
        self._wrap_names(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *keys)
        saved = saved_fit(state_dict, prefix, (*ROWS, *SMALL), unexpected_keys)
        if strict:
            missing_keys.extend(prefix + name for name in self._kept if name not in saved)
        with self.ranks.guard():
            self.ranks.agree("Sharded.load_state_dict", lambda: _facts_of_fit(saved))
            if not saved:
                return
            reason = self.module._refusal(state_dict.get(prefix + ENTRY))
            said = self.ranks.said_by_all(reason)
            if any(said):
                reason = reason or "; ".join(f"rank {rank}: {words}" for rank, words in enumerate(said) if words)
                error_msgs.append(f"The fit of {prefix.rstrip('.') or 'Sharded'} was not loaded: {reason}.")
                return
            with torch.no_grad():
                rows = {name: equal_part(saved[name], self.ranks) for name in ROWS if name in saved}
                small = {name: saved[name].detach().clone() for name in SMALL if name in saved}
                fit = ShardedFit.loaded(self.module, self.ranks, rows, small)
                self._keep(fit, rows, small, {name: rows[name] for name in ("embedding_", "labels_") if name in rows})

    def _wrap_names(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Rename the entries that the module itself has saved to the names used here, and drop its edges."""
        others = getattr(self.module, "FITTED", ())
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key.removeprefix(prefix)
            if name in others and name not in KEPT:
                del state_dict[key]
            elif name not in KEPT and not name.startswith("module."):
                state_dict[f"{prefix}module.{name}"] = state_dict.pop(key)
        vectors, rows = prefix + "train_vectors", prefix + "embedding_"
        if rows in state_dict and getattr(self.module, "variant", "") != "njw":  # rows of "njw" are not vectors
            state_dict.setdefault(vectors, state_dict[rows])

    @precision.full_precision
    def transform(self, x_new: Tensor) -> Tensor:
        """Return the rows ``(q, k)`` of this process's new points ``(q, D)`` by the fit, with gradients."""
        return self._rows_of("transform", x_new, LaplacianEigenmaps, SpectralClustering)

    def _rows_of(self, method: str, x_new: Tensor, *kinds: type) -> Tensor:
        with self.ranks.guard():
            self.ranks.agree(f"Sharded.{method}", lambda: self._facts(method, kinds, "x_new", x_new))
            assert self._fit is not None
            own = match_dtype(own_rows(x_new, self.ranks, "x_new"), self._fit.points.x)
            return as_given(like_given(self._fit.rows_of(own), x_new), x_new)

    @torch.no_grad()
    @precision.full_precision
    def predict(self, x_new: Tensor) -> Tensor:
        """Return the cluster of each new point ``(q, D)`` of this process, int64 ``(q,)``; −1 without neighbours."""
        rows = own_rows(self._rows_of("predict", x_new, SpectralClustering), self.ranks, "x_new")
        matrix = self.cluster_centers_ if self.module.assign_labels == "kmeans" else self.cluster_axes_
        return as_given(self.module._labels_of(rows, matrix), x_new)

    def _facts(self, method: str, kinds: tuple[type, ...], name: str, given: Any) -> dict[str, object]:
        """Return the facts of a call on which ranks must agree; raise if its points or the module are invalid."""
        own = own_rows(given, self.ranks, name)
        facts = {"a DTensor": own is not given, **in_words("module", self.module), **_facts_of_parameters(self.module)}
        facts |= checks.facts_of_rows(**{name: own}, **dict(self.module.named_parameters()))
        facts.pop("module.solve.progress", None)  # a single rank may show progress
        if not isinstance(self.module, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{method} needs a Sharded({names}), got a Sharded({type(self.module).__name__})")
        if name == "x_new":
            if self._fit is None:
                raise RuntimeError("Sharded must be fitted before it takes new points; call fit first")
            check_like(match_dtype(own, self._fit.points.x), self._fit.points.x, name, 0)
        return facts

    def graph_of(self, x: Tensor) -> tuple[ShardedPoints, ShardedGraph]:
        """Return the points spread over the ranks, and their weighted graph, for further computations."""
        with self.ranks.guard():
            points, graph = self._spread("graph_of", x)
            return points, self.module.weights(points.x, graph)

    def _loss(self, y: Tensor, x: Tensor) -> Tensor:
        def facts() -> dict[str, Any]:
            own = own_rows(y, self.ranks, "y")
            checks.check_floating(checks.half_to_float32(own), "y")
            if own.ndim != 2 or len(own) != points.given:
                raise ValueError(f"y must have shape ({points.given}, k) to go with the points, got {tuple(own.shape)}")
            checks.check_finite(own, "y")
            return checks.facts_of_rows(y=own)

        with self.ranks.guard():
            points, graph = self._spread("forward", x)
            self.ranks.agree("Sharded.forward", facts)
            here = points.here(own_rows(y, self.ranks, "y"))
            return self.module._of_graph(here, self.module.weights(points.x, graph))  # type: ignore[no-any-return]

    def _spread(self, method: str, x: Tensor, *kinds: type) -> tuple[ShardedPoints, ShardedGraph]:
        """Return the points of a call spread over the ranks, and their graph; all ranks must have equal modules."""
        self.ranks.agree(f"Sharded.{method}", lambda: self._facts(method, kinds or (nn.Module,), "x", x))
        if (other := self.ranks.unlike(self.module)) is not None:
            way = "load ranks.of_first(module.state_dict), then sum_gradients in each step, or DistributedDataParallel"
            raise self.ranks.alike(DistributedError(f"parameter {other} must be the same on all ranks; {way}"))
        points = ShardedPoints.spread(checks.half_to_float32(own_rows(x, self.ranks, "x")), self.ranks)
        return points, sharded_graph(points, self.module.neighbors)

    def _solve(self, points: ShardedPoints, graph: ShardedGraph) -> tuple[Laplacian, Embedding, list[Eigenpairs]]:
        laplacian = Laplacian(self.module.weights(points.x, graph), self.module._normalization)
        solved: list[Eigenpairs] = []
        found = self.module._solve_graph(laplacian, solved, fill=False)
        return laplacian, found, solved


def sum_gradients(module: nn.Module, ranks: Ranks) -> None:
    """Replace each parameter's gradient by its sum over ranks, between the backward pass and the optimiser's step.

    All ranks call it, with equal parameters, of whose gradient each has the part from its own rows. If
    `DistributedDataParallel` averages the parts, multiply the loss by ``ranks.world`` instead.

    Raises: DistributedError: parameters of other shapes or dtypes on another rank.

    >>> layer = nn.Linear(2, 1)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> sum_gradients(layer, Ranks())  # unchanged on one process
    >>> layer.weight.grad
    tensor([[1., 1.]])
    """
    with ranks.guard():
        ranks.agree("sum_gradients", lambda: _facts_of_parameters(module))
        for parameter in module.parameters():
            if parameter.requires_grad:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = ranks.sum(own)


def _facts_of_parameters(module: nn.Module) -> dict[str, object]:
    named = {f"parameter {name}": p for name, p in module.named_parameters()}
    return {name: f"{tuple(p.shape)} of {p.dtype}, requires_grad={p.requires_grad}" for name, p in named.items()}


def _facts_of_fit(saved: State) -> dict[str, object]:
    """Return the facts of a saved fit on which ranks must agree: whole tensors byte by byte, rows by number."""
    facts: dict[str, object] = {}
    for name, value in saved.items():
        facts[f"{name} of the state"] = f"{type(value).__name__} {tuple(value.shape)} of {value.dtype}"
        if not isinstance(value, DTensor):
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            facts[f"contents of {name} in the state"] = hashlib.blake2b(raw.data, digest_size=8).hexdigest()
    return facts
