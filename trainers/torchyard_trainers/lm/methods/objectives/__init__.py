"""Objectives of preference learning, one in each file."""
