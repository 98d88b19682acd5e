"""What the server learns about labels: correlations, their collection, and their privacy."""
