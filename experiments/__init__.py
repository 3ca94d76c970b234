"""Experiments on real data; they use the public names of `torch_lapeig` only."""
