"""TrainingProfiles: what the platform team sets and allows for jobs; their spec, limits and CRD."""
