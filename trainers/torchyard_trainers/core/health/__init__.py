"""Guards of the numbers of a run: values that are not finite, spikes, and replicas that differ."""
