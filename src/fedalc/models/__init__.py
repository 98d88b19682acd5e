"""The model: an encoder, the class embeddings W, and what a trained one needs to predict."""
