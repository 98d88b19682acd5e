"""Collecting label sets once, under a key: clients hash, the server joins, and neither sees what the other holds."""
