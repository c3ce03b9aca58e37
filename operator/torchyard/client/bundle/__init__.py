"""The user's code as one bundle: which files travel, their digest, their archive, and how they reach the workers."""
