"""Requirements of the user's code: what the image lacks is installed before a round, into a folder on its own."""
