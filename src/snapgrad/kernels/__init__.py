"""How fast: the operations on the kept part of J."""
