"""Trees, chains and rings packed into a link graph; knows graphs, not collectives."""
