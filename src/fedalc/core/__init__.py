"""What every layer uses: files, seeds, blocks of rows, several processes. Knows nothing of federated learning."""
