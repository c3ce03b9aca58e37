"""The engine: what was seen -> what to do. `plan` is pure; the queue, executor and status writer carry it out."""
