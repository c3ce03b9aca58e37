"""The Python API, and what it shares with the command line: one backend for this machine, one for a cluster."""
