"""The operator on Kubernetes: kopf's watch of TrainingJobs, the engine, the cluster and the intake, wired together."""
