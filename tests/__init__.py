"""`python -m tests.campaign` finds its package here, and no other of this name."""
