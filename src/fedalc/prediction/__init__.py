"""Labels for new instances, from a finished run."""
