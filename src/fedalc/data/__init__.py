"""Reading datasets and splitting them into positive-only clients."""
