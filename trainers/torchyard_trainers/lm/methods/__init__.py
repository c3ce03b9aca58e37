"""Losses and steps of preference and reinforcement learning."""
