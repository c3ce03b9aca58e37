"""Exports of a trained model: formats, verification, and the manifest."""
