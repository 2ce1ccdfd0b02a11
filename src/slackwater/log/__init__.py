"""Ordered logs."""
