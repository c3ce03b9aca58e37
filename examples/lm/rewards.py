"""A reward function for rewards.yaml. A row is the record of the prompt, with every field of the file."""

import re


def number(_prompts, completions, rows):
    """Return 1 for the right number, 0.1 for any number in the tags, else 0."""
    rewards = []
    for completion, row in zip(completions, rows, strict=True):
        found = re.search(r"<answer>\s*(-?\d+)\s*</answer>", completion)
        rewards.append(0.0 if found is None else 1.0 if found[1] == row["answer"] else 0.1)
    return rewards
