"""Limits for the side of a picture. Settings, commands and data use them without loading each other."""

SMALLEST_SIDE, LARGEST_SIDE = 8, 1024  # pixels
