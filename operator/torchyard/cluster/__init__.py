"""The outside world behind the engine's ports: `local` (processes on this machine); a Kubernetes API server."""
