"""TorchYard: training jobs on Kubernetes, and on a laptop, that keep training through failures."""

__version__ = "0.1.0"
