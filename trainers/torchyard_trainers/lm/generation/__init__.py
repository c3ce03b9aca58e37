"""Completions: engines that generate them, rollouts and tables of them."""
