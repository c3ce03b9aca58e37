"""TorchYard's agent: PID 1 of every training container. Scripts may `from torchyard_agent import report`."""

from torchyard_agent.telemetry.progress import report

__all__ = ["report"]
