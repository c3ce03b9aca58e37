"""Leader election: the Lease, the fence before writes, the label that the Service follows."""
