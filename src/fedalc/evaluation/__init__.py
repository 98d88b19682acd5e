"""Measuring: ranking metrics and how a model is scored."""
