"""Kills, power cuts, full disks and flipped bits: `make crash-test`, and a small part of it in `make test`."""
