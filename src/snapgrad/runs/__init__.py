"""Runs: options in, a directory with everything that was seen out."""
