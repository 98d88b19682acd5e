"""Frozen pretrained networks as features: a record goes through the network once, and training sees the rows."""
