"""A Kubernetes cluster, through its API server."""
