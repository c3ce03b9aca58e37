"""Install, upgrade and remove the operator of a cluster: with Helm, or by our own client where there is none."""
