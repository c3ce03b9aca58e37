"""Worker processes: launchers, zygote, hooks, signals, and how a round ended."""
