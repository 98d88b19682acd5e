"""The run folder: what is in it, its history."""
