"""A first job file for a script: what the script is, read from its source, and the file that follows from it."""
