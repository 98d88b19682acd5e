"""Pictures instead of features: decoded once to small copies, and read block by block."""
