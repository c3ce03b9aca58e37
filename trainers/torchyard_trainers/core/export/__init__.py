"""Models that leave the trainer: formats, the gate they pass, and the record of what was made."""
