"""The same job on fedalc's engines and on the alternatives, for `benchmarks/engines.py` and `benchmarks/schedules.py`.

The job: the paper's mlp, or one matrix; each client takes one full-batch step of SGD per round on its positives, or
several epochs and batches, with the loss max(0, 0.9 - gᵀw)² and a fixed row w; θ averaged with weights n_u / Σn, no
dropout, single precision.

Each engine is a function of a job file and a number of rounds that returns `Measured`; `python -m peers` runs one.
"""
