"""Measurements of speed: `snapgrad bench`."""
