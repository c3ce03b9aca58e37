"""TorchYard's trainers: programs that torchrun starts, and that read an environment and write files."""
