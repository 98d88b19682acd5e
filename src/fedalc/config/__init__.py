"""Settings: their schema, the checks across sections, and how an experiment is built from presets, files and options."""
