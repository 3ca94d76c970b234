"""A Lightning callback that adds a loss on a graph to the training loss of any LightningModule.

Needs the extra ``lightning``; works with ``pytorch_lightning`` and with ``lightning.pytorch``.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from torch_lapeig.graph.graph import Graph
from torch_lapeig.losses import LaplacianSmoothness
from torch_lapeig.support import checks
from torch_lapeig.support.extras import how_to_install

__all__ = ["SmoothnessCallback"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    found = []  # the Callback class of each installed package: its Trainer asks for its own
    for package in ("pytorch_lightning", "lightning.pytorch"):
        with suppress(ImportError):
            found.append(import_module(package).Callback)
    if not found:
        raise ImportError(f"torch_lapeig.lightning needs Lightning: {how_to_install('lightning')}")
    Callback = type("Callback", tuple(found), {})

Source = Literal["inputs", "features"] | Graph | Callable[[Any], Tensor | Graph]


def last_of_batch(batch: Any) -> Tensor:
    """Return the numbers of the points of a batch: its last part, int64 ``(M,)``."""
    nodes = batch[-1] if isinstance(batch, (list, tuple)) and batch else batch
    if isinstance(nodes, Tensor) and nodes.dtype == torch.int64 and nodes.shape == nodes.unique().shape:
        return nodes
    arrived = f"{nodes.dtype} of shape {tuple(nodes.shape)}" if isinstance(nodes, Tensor) else type(nodes).__name__
    raise TypeError(
        f"the last part of a batch must be its points' numbers in the graph, distinct, int64 (M,), got {arrived}; add "
        "them, or pass nodes=lambda batch: ..., with EdgeSampler graph_from=lambda batch: EdgeSampler.pairs(batch[0])"
    )


class SmoothnessCallback(Callback):
    """Callback that adds ``weight`` × the smoothness of a submodule's output to the training loss, logged as ``name``.

    The LightningModule need not change. While it trains, its ``training_step`` is wrapped: the term is added to the
    step's result (a tensor, or a dict with ``"loss"``; None stays None), the mean over the calls of the submodule.
    After training, or after an exception, the wrapper is removed.

    Args:
        weight: positive factor of the term.
        module: name of the submodule, as for ``get_submodule``; ``""`` for the LightningModule's own ``forward``. Its
            output y has shape ``(N, k)`` or ``(B, N, k)``.
        loss: called as ``loss(y, points or graph)``, with a scalar result: `LaplacianSmoothness` (the default),
            `SpectralLoss` or your own module. Its parameters are not trained.
        graph_from: a `Graph` of all training points: each step uses the subgraph of its batch. This is the best choice,
            with the batches of `torch_lapeig.samplers.NeighborhoodSampler`. Or the points from which a batch's graph is
            built, without gradients: ``"inputs"``: the submodule's first argument, flattened to ``(N, D)`` or
            ``(B, N, D)``; ``"features"``: its output; or a function from the batch to points or a `Graph`. Graphs of
            random batches join points that are not neighbours, and may lower the accuracy.
        name: name of the logged value, the smoothness without the factor ``weight``.
        nodes: function from the batch to the numbers of its points in the graph of all, int64 ``(M,)``, distinct;
            default: the last part of the batch, ``TensorDataset(x, target, torch.arange(len(x)))``. It may also return
            a list with one entry for each call of the submodule in a step, None for a call that is not smoothed, such
            as a call with labelled points from another loader: ``lambda batch: [batch["near"][-1], None]``.

    Raises: RuntimeError: a step that does not call the submodule.

    Each of several processes computes and logs the smoothness of its own batches. Use ``drop_last=True`` in the data
    loader if the last batch would have fewer points than the graph has neighbours.

    >>> import torch
    >>> from torch_lapeig import knn_graph
    >>> x = torch.rand(100, 3, generator=torch.Generator().manual_seed(0))
    >>> callback = SmoothnessCallback(0.1, "encoder", graph_from=knn_graph(x, 10))
    >>> callback.weight, callback.module  # Trainer(callbacks=[callback])
    (0.1, 'encoder')
    """

    def __init__(
        self,
        weight: float,
        module: str = "",
        loss: nn.Module | None = None,
        graph_from: Source = "inputs",
        name: str = "smoothness",
        nodes: Callable[[Any], Tensor] = last_of_batch,
    ) -> None:
        checks.check_function(nodes, "nodes", "a function from the batch to the numbers of its points")
        if nodes is not last_of_batch and not isinstance(graph_from, Graph):
            raise ValueError("nodes needs graph_from to be a Graph of all points, got another; leave nodes out")
        if not callable(graph_from) and not isinstance(graph_from, Graph):
            checks.check_choice(graph_from, "graph_from", ("inputs", "features"))
        checks.check_instance(module, "module", str, "the name of a submodule")
        checks.check_instance(name, "name", str, "the name of the logged value")
        if loss is not None:
            checks.check_instance(loss, "loss", nn.Module, "a module such as LaplacianSmoothness()")
        self.weight = checks.check_positive(weight, "weight")
        self.module, self.name, self.nodes, self._who = module, name, nodes, f"SmoothnessCallback: module {module!r}"
        self.loss = LaplacianSmoothness() if loss is None else loss
        self.graph_from: Source = graph_from
        if any(parameter.requires_grad for parameter in self.loss.parameters()):
            raise ValueError("loss must not have learnable parameters, got some; use loss.requires_grad_(False)")

    @property
    def state_key(self) -> str:
        """Return the key of this callback's state in a checkpoint, distinct for callbacks of distinct names."""
        return f"{type(self).__qualname__}[{self.name}]"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wrap the training step."""
        if self.module not in (known := dict(pl_module.named_modules())):
            owner, names = type(pl_module).__name__, ", ".join(repr(name) for name in known if "." not in name)
            raise ValueError(f"module must name a submodule of {owner}, got {self.module!r} ({names})")
        if not pl_module.automatic_optimization:
            raise ValueError("automatic_optimization must be True, got False; add the loss in your training_step")
        self.loss.to(pl_module.device)
        step = vars(pl_module).get("training_step")
        if not isinstance(step, _Step):
            step = vars(pl_module)["training_step"] = _Step(pl_module)
        step.terms.append(self)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the term; after the last term, restore the module's own step."""
        step = vars(pl_module).get("training_step")
        if not isinstance(step, _Step) or self not in step.terms:
            return
        step.terms.remove(self)
        if not step.terms:
            del vars(pl_module)["training_step"]
            if step.replaced is not None:
                vars(pl_module)["training_step"] = step.replaced

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the term, as ``on_train_end`` does."""
        self.on_train_end(trainer, pl_module)

    def term(self, pl_module: LightningModule, batch: Any, calls: list[tuple[Any, Any]]) -> Tensor:
        """Return the weighted term of a step, given the inputs and outputs of the submodule's calls."""
        if not calls:
            raise RuntimeError(f"{self._who} was not called in training_step; name a submodule that it calls")
        # Numbers of the points of each call; without a graph of all points the batch itself.
        nodes: Any = self.nodes(batch) if isinstance(self.graph_from, Graph) else [batch] * len(calls)
        parts = list(nodes) if isinstance(nodes, (list, tuple)) else [nodes] * len(calls)
        if len(parts) != len(calls):
            expected = f"one entry for each of the {len(calls)} calls of module {self.module!r} in a step"
            raise ValueError(f"nodes must return {expected}, got {len(parts)}; None is for a call not smoothed")
        smoothed = [(part, *call) for part, call in zip(parts, calls, strict=True) if part is not None]
        if not smoothed:
            return torch.zeros((), device=pl_module.device)
        mean = torch.stack([self._loss(*call) for call in smoothed]).mean()
        pl_module.log(self.name, mean.detach(), batch_size=len(smoothed[0][2]))
        return self.weight * mean

    def _loss(self, part: Any, inputs: Any, y: Any) -> Tensor:
        if not isinstance(y, Tensor) or y.ndim not in (2, 3):
            arrived = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"{self._who} must return (N, k) or (B, N, k), got {arrived}; name one that does")
        source = y if self.graph_from == "features" else inputs
        if isinstance(self.graph_from, Graph):
            if len(part) != len(y):
                advice = "if a step calls it twice, pass nodes=lambda batch: [numbers of the points, None]"
                raise ValueError(f"{self._who} returned {len(y)} rows for {len(part)} points; {advice}")
            source = self.graph_from.subgraph(torch.as_tensor(part, device=self.graph_from.weight.device)).to(y.device)
        elif callable(self.graph_from):
            source = self.graph_from(part)
        elif not isinstance(source, Tensor) or source.ndim < y.ndim:
            arrived = tuple(source.shape) if isinstance(source, Tensor) else type(source).__name__
            raise ValueError(f"{self._who} must take {y.ndim} axes, got {arrived}; pass graph_from=lambda batch: ...")
        else:
            source = source.flatten(y.ndim - 1)
        loss: Tensor = self.loss(y, source.detach() if isinstance(source, Tensor) else source)
        if loss.ndim != 0:
            got = f'got shape {tuple(loss.shape)}; use reduction="mean", or .mean() in your own loss'
            raise ValueError(f"loss must be a scalar, {got}")
        return loss


class _Step:
    """Training step of a module with the terms of callbacks, which replaces the module's own step in training."""

    # Lightning has no hook that may change the result of a step before it is divided by the number of accumulated
    # batches and scaled for half precision.
    def __init__(self, module: LightningModule) -> None:
        functools.update_wrapper(self, module.training_step)  # Lightning inspects the names of its arguments
        self.module, self.original = module, module.training_step
        self.replaced = vars(module).get("training_step")  # None: the step is a method of the class
        self.terms: list[SmoothnessCallback] = []

    def __call__(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        calls: list[list[tuple[Any, Any]]] = [[] for _ in self.terms]  # first argument and output of each
        with ExitStack() as hooks:
            for term, seen in zip(self.terms, calls, strict=True):

                def record(_: nn.Module, args: Any, kwargs: Any, output: Any, seen: list[Any] = seen) -> None:
                    seen.append((next(iter([*args, *kwargs.values()]), None), output))

                watched = self.module.get_submodule(term.module)
                hooks.callback(watched.register_forward_hook(record, with_kwargs=True).remove)
            result = self.original(batch, *args, **kwargs)
        if result is None:
            return None
        added: Any = sum(term.term(self.module, batch, seen) for term, seen in zip(self.terms, calls, strict=True))
        return {**result, "loss": result["loss"] + added} if isinstance(result, dict) else result + added

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the original step: no callback is attached to a copy of the module."""
        return copy.deepcopy(self.original, memo)
