"""Pictures in the place of features: decoded once, kept small, read block by block."""
