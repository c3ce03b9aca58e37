"""What a trainer can do besides training: eval, bench, export and preflight."""
