"""Checks of what a run needs, each of one thing."""
