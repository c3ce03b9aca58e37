"""What a cluster would do with a job before it is submitted: pure functions of what could be read of the cluster."""
