"""Training: one federated round, the loop over rounds with selection, checkpoints, callbacks, server optimisers."""
