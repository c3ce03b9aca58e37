"""What a shell may complete: words of a command line, names of jobs, and fields of a job."""
