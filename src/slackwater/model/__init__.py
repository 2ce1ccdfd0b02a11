"""Shared nouns."""
