"""Shared nouns: column types and values, schemas, spans, ranges, leases, nodes and transactions. Pure; no I/O, no clock.

    file                        noun
    ids                         identifiers of nodes and ranges, positions in a log
    kinds, values               column types; which Python values a column accepts, and their stored forms
    schema, tables              one version of a table; a table over time
    spans                       half-open spans of keys, and sets of them
    predicates                  conditions on columns that a scan pushes down
    descriptors, txns           ranges, leases and nodes; transactions and their records
    changes, settle             committed versions as columns; their order below the resolved timestamp
    locality, reserved          where something is; column names that belong to the system

What crosses a wire or the log stands in `protocol/`, what turns rows into bytes and columns in `codec/`. Both import this.
"""

from slackwater.model.kinds import ColumnType
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.spans import Span, SpanSet

__all__ = ["Column", "ColumnType", "KeyColumn", "Span", "SpanSet", "TableSchema"]
