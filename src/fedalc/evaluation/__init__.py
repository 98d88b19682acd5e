"""Metrics, and how a model is scored. `register_metric` (metrics.py) adds a metric from outside the package."""
