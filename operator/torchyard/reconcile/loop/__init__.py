"""What carries out plans: the work queue, the controller, the executor, the log of decisions."""
