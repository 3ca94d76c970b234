"""One script for each claim; each prints a table with the peer in the same run."""
