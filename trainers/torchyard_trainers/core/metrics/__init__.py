"""Metrics: speed, utilisation, and the curves written over time."""
