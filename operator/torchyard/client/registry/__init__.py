"""Code as an image: `torchyard push` writes it to a registry, and runs of this machine read it from there."""
