"""A small HTTP service that predicts with a trained model (docs/serving.md)."""
