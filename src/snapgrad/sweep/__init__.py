"""Sweeps: an experiment's runs, expanded, carried out, collected and judged."""
