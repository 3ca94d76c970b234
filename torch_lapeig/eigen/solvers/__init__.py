"""Solvers of the eigenproblem, what they share, and preconditioners."""
