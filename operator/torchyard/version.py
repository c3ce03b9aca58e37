"""The version, by itself: what only needs it does not import the Python API."""

__version__ = "0.1.0"
