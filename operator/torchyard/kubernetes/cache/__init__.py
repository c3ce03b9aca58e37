"""What the operator keeps of a cluster's objects: watched, decoded, joined."""
