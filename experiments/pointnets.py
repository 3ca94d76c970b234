"""Networks of point clouds: with Laplacian eigenmaps inside, and DGCNN, of about one size.

Each is a module from points ``(B, N, channels)`` and a mask ``(B, N)`` to a vector of each cloud, of ``width`` numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torch_lapeig import KNN, GraphWarning, HeatKernel, LaplacianEigenmaps

TIMES = 8  # of the heat kernel: FIRST_TIME · 2^j
FIRST_TIME = 2.0
FEATURES = 8


class Body(nn.Module):
    """A network up to its vector of each cloud, of ``width`` numbers."""

    width: int


class HeatSignatures(nn.Module):
    """Heat kernel signatures of a learned graph: what its eigenpairs say whatever their signs and bases.

    The layer's eigenvalues and vectors enter by p_t = f_t(Λ), f_t(λ) = exp(−tλ) − exp(−tλ_k), alone: the diagonal of
    Y p_t Yᵀ, over its mean (Sun, Ovsjanikov & Guibas, *A concise and provably informative multi-scale signature based
    on heat diffusion*, 2009), and log tr p_t. Both are differentiable in the edge weights where λ_i cross, i < k. Where
    λ_k and λ_(k + 1) do they are continuous, with bounded gradients: f falls to 0 at the last pair, and
    |f_t(λ_i)| / (λ_(k + 1) − λ_i) ≤ t.

    Args:
        neighbors: of the graph. eigenvectors: k, the constant one included; more than a graph has components.
    """

    def __init__(self, neighbors: int, eigenvectors: int) -> None:
        super().__init__()
        self.kernel = HeatKernel("median", learnable=True)
        self.layer = LaplacianEigenmaps(eigenvectors, KNN(neighbors, "union"), self.kernel, drop_trivial=False)

    @property
    def bandwidth_factor(self) -> float:
        """Return the factor of the median of squared edge lengths."""
        return self.kernel.factor

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return signatures ``(B, N, TIMES)`` minus 1, and traces ``(B, TIMES)`` of features ``(B, N, d)``."""
        with warnings.catch_warnings():  # linked rings have two components, and the signatures are those of both
            warnings.filterwarnings("ignore", "the neighbourhood graph has .* connected components", GraphWarning)
            (pairs,) = self.layer.embed(x.double(), mask=mask).pairs  # whose gaps may be as small as float32 can tell
        signatures, traces = heat(pairs.vectors, pairs.projected)
        mean = signatures.sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        return (signatures / mean - 1).to(x.dtype), traces.log().to(x.dtype)


def heat(vectors: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
    """Return diag(Y p_t Yᵀ) ``(B, N, TIMES)`` and tr p_t ``(B, TIMES)`` of Y ``(B, N, k)`` and Λ ``(B, k, k)``.

    Λ is diagonal, but its gradient is that of a matrix, without which none is defined for equal eigenvalues.
    """
    identity = torch.eye(projected.shape[-1], dtype=projected.dtype, device=projected.device)
    decay = torch.matrix_exp(-FIRST_TIME * projected)
    signatures, traces = [], []
    for _ in range(TIMES):
        kernel = decay - decay[:, -1:, -1:] * identity
        signatures.append(((vectors @ kernel) * vectors).sum(-1))
        traces.append(kernel.diagonal(dim1=-2, dim2=-1).sum(-1))
        decay = decay @ decay
    return torch.stack(signatures, -1), torch.stack(traces, -1)


class Points(Body):
    """Points → features → numbers of each point and of the cloud → one perceptron for all points → maximum and mean.

    Args:
        channels: of the points. signatures: in the middle.
        frozen: the signatures are those of the points instead of features, and no gradient goes through them.
    """

    def __init__(self, channels: int, signatures: HeatSignatures, frozen: bool = False) -> None:
        super().__init__()
        self.frozen = frozen
        self.lift = nn.Linear(channels, FEATURES, bias=False)
        last = nn.Linear(32, FEATURES)
        self.bend = nn.Sequential(nn.Linear(channels, 32), nn.ReLU(), last)
        self.points = nn.Sequential(nn.Linear(FEATURES + TIMES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        # Distances of features are at first those of the points, so that training begins with their graph.
        nn.init.orthogonal_(self.lift.weight)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.signatures = signatures
        self.width = 128 + TIMES
        self.at_layer = 0.0  # norm of the latest gradient that left the signatures

    def features(self, x: Tensor) -> Tensor:
        """Return ``(B, N, FEATURES)`` of points ``(B, N, channels)``."""
        features: Tensor = self.lift(x) + self.bend(x)
        return features

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return ``(B, width)``."""
        features = self.features(x)
        entering = x if self.frozen else features.clone()
        if entering.requires_grad:
            entering.register_hook(self._note)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            of_points, of_clouds = self.signatures(entering, mask)
        rows = self.points(torch.cat([features, of_points], -1))
        return torch.cat([pooled(rows, mask), of_clouds], -1)

    def _note(self, gradient: Tensor) -> None:
        self.at_layer = float(gradient.norm())


class DGCNN(Body):
    """Wang et al., *Dynamic graph CNN for learning on point clouds* (2019): two edge convolutions.

    The neighbours of each are searched anew in the features before it, those of the first in all channels.
    """

    def __init__(self, channels: int, neighbors: int) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.first = nn.Sequential(*normed(2 * channels, 32), *normed(32, 32))
        self.second = nn.Sequential(*normed(64, 40))
        self.last = nn.Sequential(*normed(72, 48))
        self.width = 96

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return ``(B, width)``."""
        first = self._convolved(self.first, x, mask)
        second = self._convolved(self.second, first, mask)
        return pooled(self.last(torch.cat([first, second], -1)), mask)

    def _convolved(self, layers: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        """Return maximum over the neighbours of a perceptron of the point and the difference."""
        number = nearest(x, x, mask, self.neighbors)
        around = gathered(x, number)
        here = x[:, :, None].expand_as(around)
        edges: Tensor = layers(torch.cat([here, around - here], -1))
        return edges.amax(2)


def normed(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a layer of DGCNN with layer norms in place of batch norms, which see padding."""
    return [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU()]


def pooled(rows: Tensor, mask: Tensor) -> Tensor:
    """Return maximum and mean over the points that there are, ``(B, 2 d)`` of ``(B, N, d)``."""
    largest = rows.masked_fill(~mask[..., None], -math.inf).amax(1)
    mean = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.cat([largest, mean], -1)


@torch.no_grad()
def nearest(queries: Tensor, x: Tensor, mask: Tensor, k: int) -> Tensor:
    """Return numbers ``(B, Q, k)`` of the valid points of ``(B, N, d)`` nearest to each query, itself included."""
    distances = torch.cdist(queries, x).masked_fill(~mask[:, None], math.inf)
    return distances.topk(k, largest=False).indices


def gathered(x: Tensor, number: Tensor) -> Tensor:
    """Return the points ``(B, Q, k, d)`` of those numbers."""
    item = torch.arange(len(x), device=x.device)[:, None, None]
    return x[item, number]


# By channels, neighbours and eigenvectors.
NETWORKS: dict[str, Callable[[int, int, int], Body]] = {
    "layer": lambda channels, k, vectors: Points(channels, HeatSignatures(k, vectors)),
    "frozen": lambda channels, k, vectors: Points(channels, HeatSignatures(k, vectors), frozen=True),
    "dgcnn": lambda channels, k, vectors: DGCNN(channels, k),
}
