"""The workload `vla`: behaviour cloning of vision-language-action models."""
