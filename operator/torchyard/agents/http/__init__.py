"""The HTTP server for agents: connections, TLS, limits, Unix sockets."""
