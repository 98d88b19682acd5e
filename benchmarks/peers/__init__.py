"""The same job done by fedalc's engines and by what else one would take for it. `benchmarks/engines.py` runs them.

The job: the paper's mlp, every client one full-batch step of SGD per round on its positives, the loss
max(0, 0.9 - gᵀw)² with a fixed row w of its own, θ averaged with weights n_u / Σn, no dropout, single precision.

Each way is a function from a job's file and a number of rounds to `Measured`; `python -m peers` runs one.
"""
