"""Federated learning when every client has only positive examples of its own label."""
