"""
Positional encodings of graphs, with PyTorch Geometric
======================================================

Graph networks and transformers take the first eigenvectors of each graph as coordinates
of its nodes. All graphs of a batch are solved together.
"""

# %%
# A batch of graphs
# -----------------
# `AddLaplacianPE` takes the place of PyTorch Geometric's ``AddLaplacianEigenvectorPE``
# on a ``Data``, a ``Batch`` or a list.

import time

import matplotlib.pyplot as plt
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE
from torch_geometric.utils import erdos_renyi_graph, grid, to_undirected

from torch_lapeig import Graph, laplacian_positional_encoding
from torch_lapeig.plots import plot_graph
from torch_lapeig.pyg import AddLaplacianPE

torch.manual_seed(0)


def tree(nodes):
    """Return a random tree with two more edges."""
    child = torch.arange(1, nodes)
    parent = (child * torch.rand(nodes - 1)).long()
    edges = torch.cat(
        [torch.stack([child, parent]), torch.randint(0, nodes, (2, 2))], 1
    )
    return Data(
        edge_index=to_undirected(edges[:, edges[0] != edges[1]]), num_nodes=nodes
    )


graphs = [tree(int(nodes)) for nodes in torch.randint(15, 40, (100,))]
ours, theirs = (
    AddLaplacianPE(4, "pe"),
    AddLaplacianEigenvectorPE(4, "pe", is_undirected=True),
)
ours(graphs), theirs(graphs[0].clone())  # once before the time is taken
began = time.perf_counter()
encoded = ours(graphs)
middle = time.perf_counter()
reference = [theirs(graph.clone()) for graph in graphs]
ended = time.perf_counter()
print(
    f"{len(graphs)} graphs: together {middle - began:.3f} s, one after the other by "
    f"PyG {ended - middle:.3f} s"
)

# %%
# The same spaces
# ---------------
# Signs differ, and PyG draws them at random. The products of the rows do not depend on
# signs; they are compared where no two eigenvalues are close.


def products(data):
    """Return products of rows, which signs do not change."""
    return data.pe @ data.pe.mT


differences = torch.stack(
    [
        (products(a) - products(b)).abs().max()
        for a, b in zip(encoded, reference, strict=True)
    ]
)
print(
    f"median difference {differences.median():.1e}; graphs with more than 1e-3: "
    f"{(differences > 1e-3).sum()}"
)

# %%
# Gradients to the weights of the edges
# -------------------------------------
# The function behind the transform takes weights and returns gradients to them.

batch = Batch.from_data_list(graphs)
weight = torch.ones(batch.num_edges, requires_grad=True)
vectors, values = laplacian_positional_encoding(
    batch.edge_index, batch.batch, 4, weight
)
values[:, 0].sum().backward()
print(
    f"{len(values)} graphs, {len(vectors)} nodes, largest gradient of a weight "
    f"{weight.grad.abs().max():.3f}"
)

# %%
# The picture
# -----------
# Three graphs drawn by two coordinates of their own encoding: a random graph, a grid,
# and one of the trees.

pictures = {
    "random": Data(edge_index=erdos_renyi_graph(40, 0.12), num_nodes=40),
    "grid": Data(edge_index=grid(6, 9)[0], num_nodes=54),
    "tree": graphs[0],
}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for panel, (name, data) in zip(axes, pictures.items(), strict=True):
    graph = Graph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    plot_graph(graph, ours(data).pe, axes=panel).set_title(name)
plt.show()

# sphinx_gallery_thumbnail_panel = 1
