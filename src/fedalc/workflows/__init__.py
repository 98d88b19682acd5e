"""What a user does: train, compare, predict. Each puts the layers below together."""
