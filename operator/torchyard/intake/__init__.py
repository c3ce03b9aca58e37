"""Where agents call in: one HTTP endpoint, state up, command down. Implements the engine's port `Agents`."""
