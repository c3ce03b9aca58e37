"""The command line: `torchyard`. Imports are lazy; `--help` answers without the rest."""
