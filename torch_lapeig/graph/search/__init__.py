"""Searches for the nearest neighbours of points, exact and approximate."""
