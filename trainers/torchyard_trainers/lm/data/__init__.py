"""Records of files and prompts of tasks as tokens."""
