"""A training: one round, the loop over rounds with selection, the server's optimisers."""
