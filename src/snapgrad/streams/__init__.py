"""From the samples of a stream, dicts of named values, to the vectors that a network reads, and back."""
