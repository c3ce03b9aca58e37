"""What every workload shares: one loop, one data order, one checkpoint format, strategy as a setting."""
