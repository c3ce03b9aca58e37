"""The page as a server in a cluster: read-only, for many users, each with the token of its own requests."""
