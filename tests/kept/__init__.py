"""Files of earlier versions must load forever. `python -m tests.kept FOLDER` makes such files."""
