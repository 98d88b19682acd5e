"""Settings: what there is to set, which settings go together, and how an experiment is put together."""
