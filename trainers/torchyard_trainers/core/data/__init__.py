"""Samples that are read: sources, and the loader that reads them ahead of time."""
