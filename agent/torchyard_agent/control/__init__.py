"""The operator's side of the agent: sync, rounds, and what is sent of this pod."""
