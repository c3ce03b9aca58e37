"""The workload `lm`: fine-tuning of causal language models."""
