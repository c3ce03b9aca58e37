"""What is observed of workers: logs, reports, GPUs, memory, hangs, stacks."""
