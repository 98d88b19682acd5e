"""Collect label sets once, under a key that the clients share: clients hash, the server joins equal digests."""
