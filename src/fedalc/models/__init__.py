"""The model: an encoder, the class embeddings W, and prediction with trained models."""
