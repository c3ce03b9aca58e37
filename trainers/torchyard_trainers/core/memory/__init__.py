"""Memory of a rank: limits, measurement, forecast, and micro-batches that fit."""
