"""The dashboard in the terminal: `torchyard top`."""
