"""Capacitated vehicle routing: learn to build short routes with REINFORCE."""
