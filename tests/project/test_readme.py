"""The code of README and docs runs as pasted, and their links lead somewhere."""

import importlib
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull
from torch.utils.data import DataLoader, TensorDataset

import torch_lapeig
from torch_lapeig import KNN, HeatKernel, Laplacian, LaplacianEigenmaps, eigenpairs, knn_graph

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"README.md": ROOT / "README.md"}
PAGES |= {p.relative_to(DOCS).as_posix(): p for p in sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("_*/**/*.md")})}
FENCED = {
    name: re.findall(r"^ *(?:```|~~~)(.*)\n((?s:.*?))^ *(?:```|~~~)$", page.read_text(), re.M)
    for name, page in PAGES.items()
}
# Python that runs, after the blocks that it goes on from, and the libraries that it needs beyond those of the tests.
BLOCKS, NEEDS = {}, {}
for page, fenced in FENCED.items():
    code = [(kind, block, block.partition("\n")[0]) for kind, block in fenced if kind in ("python", "py")]
    for number, (kind, block, first) in enumerate(code):
        goes_on, name = first.startswith("# fragment: goes on from above"), f"{page} {number}"
        if kind == "python" or goes_on or first.startswith("# program: needs "):
            BLOCKS[name] = "".join(block for _, block, _ in code[:number] * goes_on) + block
            NEEDS[name] = re.findall(r"\b(?!and\b)\w+", first.partition(" needs ")[2]) if kind == "py" else []


# PyG's on first import; of torch's exporter to ONNX.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated", "ignore:.isinstance.treespec:FutureWarning")
@pytest.mark.parametrize("name", BLOCKS)
def test_code_runs_as_pasted(name, capsys, tmp_path, monkeypatch):
    for library in NEEDS[name]:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(BLOCKS[name], name, "exec"), {})
    assert capsys.readouterr().out.count("\n") >= 1


def test_code_fits_a_page():
    """README and its pages; `docs/conf.py` checks all that the site shows: outputs, examples and programs too."""
    for name, fenced in FENCED.items():
        code = "".join(text for kind, text in fenced if not kind.startswith("{"))
        assert [line for line in code.splitlines() if len(line) > 88] == [], name


def test_pages_are_plain_markdown():
    """A code host shows them as they are: what only the site understands stands in comments."""
    for name, page in PAGES.items():
        shown = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
        prose = re.sub(r"^```.*?^```$", "", shown, flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"^:::.*|^```{.*|{[a-z:]+}`.*|^\(\w+\)=$", shown, re.MULTILINE) == [], name
        assert prose.count("$$") % 2 == 0, name


def test_code_runs_or_says_what_it_lacks():
    """Blocks marked `python` run. Those marked `py` need another library, go on from above, or say what they lack."""
    for name, fenced in FENCED.items():
        assert {kind for kind, _ in fenced} <= {"python", "py", "sh", "", "{toctree}"}, name
        firsts = [text.partition("\n")[0] for kind, text in fenced if kind == "py"]
        assert [first for first in firsts if not re.match("# fragment: .|# program: needs .", first)] == [], name
        plain = [text for kind, text in fenced if kind == ""]
        assert not [text for text in plain if re.search(r"^ *(import|from|>>>) |\w\(.*\)", text, re.M)], name


def test_guide_lists_every_page_once():
    text = PAGES["guide.md"].read_text()
    listed = re.findall(r"\]\(([\w/]+)\.md\)", text)
    trees = "".join(re.findall(r"^```{toctree}.*?^```", text, re.DOTALL | re.M))
    contents = re.findall(r"^(?:.*<)?([\w/]+)>?$", trees, re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(contents)


def test_links_lead_to_files():
    for name, page in PAGES.items():
        links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
        assert len(links) >= 4 or name != "README.md"
        assert [link for link in links if not (page.parent / link).exists()] == [], name


@pytest.mark.parametrize("length", [60, 75], ids=["as long as the longest", "longer"])
def test_padding_does_not_reach_the_results_of_the_layer_page(length):
    """Each cloud gives, with its gradients, what it gives alone, whatever the padding holds."""
    names = {}
    exec(compile(BLOCKS["layer.md 0"], "layer.md", "exec"), names)
    torch.manual_seed(0)
    network = names["PointNet"]().double()
    clouds = [torch.randn(1, n, 3, dtype=torch.float64) for n in (60, 30, 11, 5, 2)]
    whole = [torch.ones(1, cloud.shape[1], dtype=torch.bool) for cloud in clouds]
    alone = torch.cat([network(cloud, mask) for cloud, mask in zip(clouds, whole, strict=True)])
    mask = torch.cat([torch.nn.functional.pad(row, (0, length - row.shape[1])) for row in whole])
    for filling in (0.0, 100.0, torch.nan):
        padded = torch.full((len(clouds), length, 3), filling, dtype=torch.float64)
        padded[mask] = torch.cat([cloud[0] for cloud in clouds])
        together = network(padded, mask)
        torch.testing.assert_close(together, alone)
        slopes, expected = (
            torch.autograd.grad(result.square().sum(), list(network.parameters()), retain_graph=True)
            for result in (together, alone)
        )
        torch.testing.assert_close(slopes, expected)


@pytest.mark.parametrize("seed", range(6))
def test_diffusion_maps_return_the_circle_with_any_seed(seed):
    exec(BLOCKS["diffusion.md 0"].replace("manual_seed(0)", f"manual_seed({seed})"), {})  # the block asserts it


# Inline code of the cheat sheet: rows, each with its section.
ROWS = [
    (section.partition("\n")[0], row)
    for section in PAGES["cheatsheet.md"].read_text().split("\n## ")[1:]
    for row in section.splitlines()
    if "`" in row
]
# Names and options that stand alone there, and what they belong to.
BELONGS = {
    'components="separate"': "LaplacianEigenmaps(2, KNN(10), {})",
    "projected": "pairs.{}",
    "residuals": "pairs.{}",
}
# Inline code that is not evaluated, and why.
NOT_EVALUATED = {
    "torch-lapeig embed --input points.csv": "for a shell; tests/command runs the command",
    "torch-lapeig transform RUN new.csv": "for a shell; tests/command runs the command",
    'Sharded(layer, mesh["shard"])(x)': "needs several processes; tests/distributed starts them",
}


def cheat_sheet_names(section, tmp_path):
    """Return what the cheat sheet's code takes for granted: the top level of the library, points, a graph."""
    names = {name: getattr(torch_lapeig, name) for name in torch_lapeig.__all__}
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(150, 3, generator=generator)
    graph = HeatKernel("median")(points, KNN(10)(points))
    layer = LaplacianEigenmaps(2, KNN(10)).fit(points)
    edges = knn_graph(points, 4).edge_index
    dense = torch.rand(30, 30, generator=generator) - 0.5
    names |= {"torch": torch, "torch_lapeig": torch_lapeig, "DataLoader": DataLoader, "path": tmp_path / "layer.pt"}
    names |= {"umap": SimpleNamespace(UMAP=lambda init: np.asarray(init))}
    names |= {"x": points, "x_new": points[:5] + 0.01, "points": points, "set_of_each": torch.arange(150) // 50}
    names |= {"mask": torch.arange(150) < 140, "layer": layer, "graph": graph, "blocks": points.split(50)}
    names |= {"eps": 0.4, "t": 0.1, "mass": torch.rand(150, generator=generator) + 1, "y": layer(points)}
    names |= {
        "vertices": torch.tensor(list(product((0.0, 1.0), repeat=3))),
        "w": (dense + dense.mT).fill_diagonal_(0),
        "arcs": edges,
    }
    names |= {"faces": torch.from_numpy(ConvexHull(names["vertices"]).simplices).long()}
    names |= {"members": torch.tensor([[0, 1, 2, 2, 3, 4], [0, 0, 0, 1, 1, 1]]), "rows": torch.rand(150, 40)}
    names |= {"product": lambda z, theta: theta[:, None] * z, "n": 40, "theta": torch.linspace(1, 2, 40)}
    names |= {"probabilities": torch.rand(150, 3, generator=generator).softmax(1), "edge_index": edges}
    names |= {"batch": torch.zeros(150, dtype=torch.long), "labels": torch.where(torch.arange(150) < 9, 0, -1)}
    names |= {"phi": torch.nn.Linear(1, 3), "rho": torch.nn.Linear(3, 4), "pairs": eigenpairs(Laplacian(graph), 8)}
    names["data"] = TensorDataset(points)
    if section.startswith("Clusters"):
        names["data"] = importlib.import_module("torch_geometric.data").Data(edge_index=edges, num_nodes=150)
    return names


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyG's, on first import
@pytest.mark.parametrize(("section", "row"), ROWS, ids=[row.split("|")[1].strip() for _, row in ROWS])
def test_inline_code_of_the_cheat_sheet_runs(section, row, tmp_path):
    """Snippets of a row run one after the other; names outside the top level come from modules that the row names."""
    names = cheat_sheet_names(section, tmp_path)
    snippets = re.findall(r"`([^`]+)`", row)
    for module in re.findall(r"torch_lapeig(?:\.[a-z]\w*)+", row):
        names |= {name: value for name, value in vars(importlib.import_module(module)).items() if name[0] != "_"}
    for snippet in snippets:
        if snippet not in NOT_EVALUATED:
            code = BELONGS[snippet].format(snippet) if snippet in BELONGS else snippet
            exec(compile(code, snippet, "exec"), names)


def test_what_is_not_evaluated_is_on_the_cheat_sheet():
    assert [code for code in [*BELONGS, *NOT_EVALUATED] if f"`{code}`" not in PAGES["cheatsheet.md"].read_text()] == []
