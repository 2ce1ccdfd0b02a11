"""The only door to the world."""
