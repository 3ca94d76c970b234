"""Derivatives of eigenpairs: the rule, equal eigenvalues, and the linear systems that it needs."""
