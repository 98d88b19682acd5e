"""The datasets known by name."""
