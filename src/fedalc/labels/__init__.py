"""What the server learns of the labels: correlations, how they are collected, and how they are protected."""
