"""
One graph on two processes
==========================

Several processes share the points of one graph that does not fit on one machine. Each
has its own rows, calls the same method, and gets its rows of the same answer. In this
example two processes on one machine communicate over the loopback.
"""

# %%
# What each process runs
# ----------------------
# On a cluster this is a script for ``torchrun``. `Sharded` takes the method and needs
# nothing else. The gradient of a loss that is summed over processes comes back for each
# one's rows.

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding

program = """
import sys
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.distributed import Sharded

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
x = torch.load(f"{folder}/points{rank}.pt").requires_grad_()
found = Sharded(LaplacianEigenmaps(2, KNN(10), scale="unit"), timeout=120.0).embed(x)
found.embedding.pow(4).sum().backward()
answer = found.embedding.detach(), found.eigenvalues.detach(), x.grad
torch.save(answer, f"{folder}/answer{rank}.pt")
destroy_process_group()
"""

# %%
# Two processes against one
# -------------------------
# The rows are dealt out unevenly: any split is allowed. The processes stop by
# themselves, or are ended after five minutes.

torch.manual_seed(0)
angle = 3 * torch.pi * torch.rand(600, dtype=torch.float64)
x = torch.stack(
    [
        angle.cos() * angle,
        4 * torch.rand(600, dtype=torch.float64),
        angle.sin() * angle,
    ],
    1,
)
split = [250, 350]

with tempfile.TemporaryDirectory() as folder:
    for rank, rows in enumerate(x.split(split)):
        torch.save(rows.clone(), Path(folder) / f"points{rank}.pt")
    path = os.pathsep.join(filter(None, sys.path))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), folder], env=environment
        )
        for rank in (0, 1)
    ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise RuntimeError(f"the processes ended with {codes}")
    answers = [torch.load(Path(folder) / f"answer{rank}.pt") for rank in (0, 1)]
columns, gradient = (torch.cat([answer[part] for answer in answers]) for part in (0, 2))

leaf = x.clone().requires_grad_()
alone = LaplacianEigenmaps(2, KNN(10), scale="unit").embed(leaf)
alone.embedding.pow(4).sum().backward()
print(f"eigenvalues differ by {(answers[0][1] - alone.eigenvalues).abs().max():.1e}")
print(f"columns differ by {(columns - alone.embedding).abs().max():.1e}")
print(
    f"gradients differ by {(gradient - leaf.grad).norm() / leaf.grad.norm():.1e} in "
    "relation"
)

# %%
# The picture
# -----------
# The sheet from above and its map; colour tells the process that has a point.

owner = torch.arange(2).repeat_interleave(torch.tensor(split))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
plot_embedding(x, owner, columns=(0, 2), axes=left, legend=False)
left.set(title="points", aspect="equal")
plot_embedding(columns, owner, axes=right, name="process").set_title("one map")
plt.show()
