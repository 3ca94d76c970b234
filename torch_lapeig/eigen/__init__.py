"""Operators to their few smallest eigenpairs, with one differentiation rule."""
