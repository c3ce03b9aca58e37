"""The server for agents: one HTTP endpoint, state up, command down. Implements the reconciler's port `Agents`."""
