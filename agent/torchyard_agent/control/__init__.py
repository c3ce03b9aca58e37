"""The connection to the operator: sync, rounds, and the state that is sent."""
