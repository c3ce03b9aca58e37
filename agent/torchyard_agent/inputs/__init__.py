"""Inputs of a job: data and models that are fetched once before the first round."""
