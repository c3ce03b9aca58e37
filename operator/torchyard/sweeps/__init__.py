"""Sweeps: many trials of one job, each with other parameters."""
