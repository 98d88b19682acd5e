"""The commands: they parse what was given, call a workflow and print. One file per command."""
