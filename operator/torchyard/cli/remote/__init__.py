"""TrainingJobs of a cluster on the command line, by the kubeconfig rules of kubectl."""
