"""The commands people type: one module per command, loaded only when it is called (`main` holds the table).

    slackwater NAME … ──► main: the module of that name ──► parse arguments ──► calling: one session with a node ──► print
                            │
                            └─ a `SlackwaterError` is one line on stderr: what happened, why, what to do

A command parses its arguments, talks to a node over RPC (`calling`) and prints: text for people, `--json` for machines. It
holds no logic of the product. Commands that run something (`start`, `nats`, `demo`, `sim`, `bench`) hand over to the folder
that does.
"""
