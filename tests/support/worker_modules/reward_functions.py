"""Reward functions as users write them, good and bad."""

import os
import threading


def length(prompts, completions, rows):
    print("a function may print")  # noqa: T201
    return [len(completion) + row["bonus"] for completion, row in zip(completions, rows, strict=True)]


def process(prompts, completions, rows):
    return [os.getpid()] * len(completions)


def hang(prompts, completions, rows):
    threading.Event().wait()


def fail(prompts, completions, rows):
    raise KeyError("answer")


def crash(prompts, completions, rows):
    os.abort()


def too_few(prompts, completions, rows):
    return [1.0]


def not_finite(prompts, completions, rows):
    return [1.0] * (len(completions) - 1) + [float("nan")]


def nothing(prompts, completions, rows):
    return None
