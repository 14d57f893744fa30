"""Which entries exist: weight patterns, sparse matrices, n-step reach and influence blocks."""
