"""Shared nouns: keys, spans, schemas and rows, and what ranges are asked and told. Pure; no I/O, no clock.

    a row {id: 7, name: "ada"}
      │ RowCodec.encode                        RowCodec.encode_batch │ a whole RecordBatch
      ▼                                                              ▼
    key    05 │ table:4 │ index:2 │ 20 80…07                order-preserving, prefix-free        keys.py   layout.py
    value  01 │ version:4 │ nulls │ fixed section │ ends │ tail        every column, key too     rows.py
      │ ++ 8-byte ~timestamp: the stored key of one version                                      layout.versioned
      ▼
    storage …
      │ a block of values, of any schema versions
      ▼ BlockDecoder.decode                                                                      rows_arrow.py
    pyarrow.RecordBatch in the reader's schema, pruned and filtered on the way

    file                        noun
    kinds, values               column types; Python values ↔ stored forms
    schema, retype              tables by version; reading one version as another
    keys, layout, spans         tuples as bytes; the map of the key space; sets of keys
    rows, predicates            one row ↔ bytes; conditions that a scan pushes down
    *_arrow, arrow              the same, on whole columns: numpy and Arrow, no Python object per row
    requests, commands,         what a range is asked, what stands in its log, and who owns it
    descriptors, transactions

Rules
    prefix-free  no key is a prefix of another, so a timestamp can follow a key with no separator.
    by id        columns of two schema versions meet by id: added ones take their default, dropped ones vanish, re-typed
                 ones widen or fail. A value says which version wrote it.
    twins        every vectorized function has a per-row twin that is its oracle in `tests/property`.
    one error    a decoder given any bytes whatsoever returns or raises `DecodeError`.

`import slackwater.model` does not import pyarrow; only the `*_arrow` modules do.
"""

from slackwater.model.kinds import ColumnType
from slackwater.model.rows import RowCodec
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.spans import Span, SpanSet

__all__ = ["Column", "ColumnType", "KeyColumn", "RowCodec", "Span", "SpanSet", "TableSchema"]
