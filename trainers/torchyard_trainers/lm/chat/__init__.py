"""Conversations by chat templates."""
