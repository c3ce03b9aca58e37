"""Requirements of the user's code: resolved at submission into a lock with digests, which travels with the code."""
