"""Settings: their schema, the checks across sections, and how presets, files and options become an experiment."""
