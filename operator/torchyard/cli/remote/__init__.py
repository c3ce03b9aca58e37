"""What the command line shows of a cluster."""
