"""What earlier versions wrote must load for ever. `python -m tests.kept FOLDER` makes such files."""
