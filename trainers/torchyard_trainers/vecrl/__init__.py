"""Workload `vecrl`: PPO on vectorised environments that are tensors on the device."""
