"""The operator on Kubernetes: kopf's watch of jobs, reconciler, cluster and server of agents, wired together."""
