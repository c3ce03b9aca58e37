"""The local page of `torchyard ui`: jobs of this machine and of a cluster, live in a browser."""
