"""A pod as the API server is asked for it, built from the spec alone. Pure: nothing here reads, waits or guesses."""
