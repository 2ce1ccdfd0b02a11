"""How range feeds travel between nodes."""
