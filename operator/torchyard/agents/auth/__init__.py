"""Authentication of agents: projected tokens, reviewed by the API server or checked against its keys."""
