"""Demonstrations as samples: recordings of LeRobot, their actions, statistics and instructions."""
