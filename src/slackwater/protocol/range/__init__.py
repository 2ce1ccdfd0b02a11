"""What may be asked of a range, and what it answers."""
