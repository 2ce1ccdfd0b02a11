"""What nodes ask each other besides batches of requests."""
