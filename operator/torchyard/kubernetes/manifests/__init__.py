"""Manifests of the pods, built from the spec alone by pure functions."""
