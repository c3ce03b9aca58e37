"""TrainingJobs of a cluster, by the kubeconfig rules of kubectl."""
