"""Compiled loops: `loops` calls them from Python, `sparse` those of sparse factors; the C files hold the loops."""
