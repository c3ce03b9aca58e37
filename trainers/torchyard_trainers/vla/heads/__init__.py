"""What a policy learns from demonstrations: one file for each head, behind the interface of `objectives`."""
