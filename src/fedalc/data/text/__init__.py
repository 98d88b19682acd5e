"""Raw texts to rows of features, and what a model has to keep for new texts."""
