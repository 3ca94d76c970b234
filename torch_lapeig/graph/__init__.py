"""Points to weighted graphs: neighbour search, rules, weightings, storage of edges."""
