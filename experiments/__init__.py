"""Experiments on real data; they use the public names of `torch_lapeig` only."""

from importlib.util import find_spec

if missing := [name for name in ("jsonargparse", "matplotlib", "pytorch_lightning", "sklearn") if not find_spec(name)]:
    raise ImportError(f'experiments need {", ".join(missing)}; in the clone: pip install -e ".[experiments]"')
