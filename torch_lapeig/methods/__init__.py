"""Embeddings: graphs or kernels of points to coordinates, and new points."""
