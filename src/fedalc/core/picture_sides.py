"""How small and how large pictures may be. Here, as settings, commands and data need it, and none may load another."""

SMALLEST_SIDE, LARGEST_SIDE = 8, 1024  # pixels
