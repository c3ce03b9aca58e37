"""Metrics: how fast steps are made, how well the machine is used, and where numbers go over time."""
