"""Tables of records, from files or memory: find out which column is what, and make a `Dataset` of them."""
