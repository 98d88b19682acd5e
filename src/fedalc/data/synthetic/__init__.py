"""Synthetic data, generated from a seed."""
