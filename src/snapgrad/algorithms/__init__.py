"""How to differentiate: one file an algorithm, one interface for all."""
