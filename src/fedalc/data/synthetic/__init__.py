"""Made-up data, drawn from a seed."""
