"""Laplacian positional encodings of 1000 molecule-sized graphs against PyTorch Geometric's transform.

Claim: at least 5 times the throughput of ``AddLaplacianEigenvectorPE`` on the CPU, with either of its solvers
(``is_undirected=True`` takes the symmetric one).
"""

import argparse
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE
from torch_geometric.utils import to_undirected

from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.tables import Table
from torch_lapeig import Graph, Laplacian
from torch_lapeig.pyg import AddLaplacianPE

GRAPHS, SMALLEST, LARGEST, K, ROUNDS = 1000, 12, 37, 8, 7
NAME = "laplacian_eigenvector_pe"


def molecule(nodes: int, generator: torch.Generator) -> Data:
    """Return a tree of short branches with three more edges, as rings."""
    number = torch.arange(1, nodes)
    parent = (number - 1 - torch.randint(0, 3, (nodes - 1,), generator=generator)).clamp_min(0)
    ring = torch.randint(0, nodes, (2, 3), generator=generator)
    edges = torch.cat([torch.stack([number, parent]), ring[:, ring[0] != ring[1]]], 1)
    return Data(edge_index=to_undirected(edges, num_nodes=nodes), num_nodes=nodes)


def residual(found: list[Data] | Batch, sizes: list[int], edges: list[Tensor]) -> float:
    """Return largest ‖L v − λ v‖ of the encodings, with Rayleigh quotients λ."""
    encodings = found[NAME].split(sizes) if isinstance(found, Batch) else [data[NAME] for data in found]
    largest = 0.0
    for edge_index, v in zip(edges, (e.double() for e in encodings), strict=True):
        image = Laplacian(Graph.from_edge_index(edge_index, num_nodes=len(v)).to(torch.float64)).matmul(v)
        largest = max(largest, float((image - v * (v * image).sum(0)).norm(dim=0).max()))
    return largest


def run(record: Record, options: argparse.Namespace) -> None:
    count, rounds = (200, 3) if options.quick else (GRAPHS, ROUNDS)
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(SMALLEST, LARGEST + 1, (count,), generator=generator).tolist()
    graphs = [molecule(n, generator) for n in sizes]
    batch = Batch.from_data_list(graphs)
    ours = AddLaplacianPE(K)
    symmetric, general = AddLaplacianEigenvectorPE(K, is_undirected=True), AddLaplacianEigenvectorPE(K)

    def one_by_one(transform: Any) -> list[Data]:
        return [transform(data) for data in graphs]

    candidates: dict[str, Any] = {
        "AddLaplacianPE, the list": lambda: ours(graphs),
        "AddLaplacianPE, a batch": lambda: ours(batch),
        "AddLaplacianPE, one by one": lambda: one_by_one(ours),
        "PyG, is_undirected=True": lambda: one_by_one(symmetric),
        "PyG, default": lambda: one_by_one(general),
    }
    seconds = in_turn(candidates, rounds)
    title = f"{count} graphs of {SMALLEST} to {LARGEST} nodes, k = {K}, {torch.get_num_threads()} threads"
    symmetric_peer, general_peer = (f"throughput / {name}" for name in ("PyG symmetric", "PyG default"))
    columns = {"": "", "graphs / s": ",.0f", symmetric_peer: ".2f", general_peer: ".2f", "largest residual": ".1e"}
    table = Table(f"{title}, median of {rounds}", columns)
    for name, call in candidates.items():
        gains = (ratio(seconds[peer], seconds[name]) for peer in ("PyG, is_undirected=True", "PyG, default"))
        largest = residual(call(), sizes, [data.edge_index for data in graphs])
        table.add(name, count / median(seconds[name]), *gains, largest)
    record.show(table)
