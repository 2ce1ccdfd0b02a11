"""What stands in a range's log."""
