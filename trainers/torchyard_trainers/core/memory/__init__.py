"""Memory: what a rank has and takes, what a job will take, and what fits."""
