"""TorchYard's trainers: programs for torchrun, configured by environment variables."""
