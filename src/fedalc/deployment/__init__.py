"""Run a server and parties on separate machines, with Flower: start, watch and stop them."""
