"""Decide what to do about a job from what was observed. `plan` is pure; `loop` executes what it returns."""
