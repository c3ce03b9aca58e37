"""Modes besides training: eval, bench, export and preflight."""
