"""The composition root: node, command line, console, metrics."""
