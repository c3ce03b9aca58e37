"""The operator's caches of the cluster's objects: watched, decoded, joined."""
