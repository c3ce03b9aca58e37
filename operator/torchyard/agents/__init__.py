"""The server for agents: one HTTP endpoint, state up, command down. Implements the engine's port `Agents`."""
