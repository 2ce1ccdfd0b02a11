"""The commands people type: one module per command, loaded only when it is called (`main` holds the table).

A command parses its arguments, talks to a node over RPC (`calling`) and prints: text for people, `--json` for machines. It
holds no logic of the product.
"""
