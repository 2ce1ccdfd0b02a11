"""Keys, rows and Arrow: a row as bytes and as columns, and back. Pure; no I/O, no clock.

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
    keys, key_columns, layout   tuples as bytes; key columns out of keys; the map of the key space
    rows, retype, row_checks    one row ↔ bytes; one version read as another; rows that came from outside
    narrow                      from predicates on the primary key to a span of keys
    envelope, changes_arrow     committed versions as record batches
    index_entries, access_paths entries of secondary indexes; which index a scan reads
    damage                      rows that cannot be decoded: which one, of which table
    *_arrow, arrow              the same on whole columns: numpy and Arrow, no Python object per row

Rules
    prefix-free  no key is a prefix of another, so a timestamp can follow a key with no separator.
    by id        columns of two schema versions meet by id: added ones take their default, dropped ones vanish, re-typed
                 ones widen or fail. A value says which version wrote it.
    twins        every vectorized function has a per-row twin that is its oracle in `tests/property`.
    one error    a decoder given any bytes whatsoever returns or raises `DecodeError`.

`import slackwater.codec` does not import pyarrow; only the `*_arrow` modules do.
"""

from slackwater.codec.rows import RowCodec

__all__ = ["RowCodec"]
