"""The run folder: its files, its history and the schema of its result."""
