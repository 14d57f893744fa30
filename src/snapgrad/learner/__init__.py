"""A recurrent network that learns from a stream, one sample at a time."""
