"""The atlas: eigenpairs of many families of graphs, by every solver of ours and every peer that can be installed."""
