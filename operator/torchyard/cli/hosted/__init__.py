"""What the client of another machine asks of this one: `python -m torchyard.cli.hosted REQUEST [ARGUMENT ...]`.

No commands for users: `torchyard run --host` calls them by ssh, with the version of TorchYard that it has sent.
"""
