"""Helpers for every layer: files, seeds, blocks of rows, several processes. Independent of federated learning."""
