"""What the side transport tells followers."""
