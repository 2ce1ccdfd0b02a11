"""Engines and multi-version storage."""
