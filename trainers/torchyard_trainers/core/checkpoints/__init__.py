"""Checkpoints: the commit protocol, how tensors are stored, when and beside what a save goes on, and the way back."""
