"""Runs on other machines, reached by the system's ssh client: what this machine does for them."""
