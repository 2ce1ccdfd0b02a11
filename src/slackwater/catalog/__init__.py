"""Which tables there are, and were: versioned descriptors in a system table of the store itself.

    system("table", id ++ version)  ->  {schema, dropped, next_column_id}        written once, never changed
    system("table_name", name)      ->  id                                       the names of tables that exist now
    system("alloc", "table")        ->  the last id given out                    ids are never used again

Creating, dropping and publishing a version are ordinary serializable transactions over these records: two that create one
name, or publish one version, conflict like any others and one of them is told. The time since when a version holds (its
*modification time*) is not written anywhere: it is the commit timestamp of the record, which the store keeps anyway. So
it cannot disagree with what a reader at that timestamp sees.

Every node keeps all descriptors in memory (`Tables`), complete up to a timestamp:

    node ──► TableCatalog ──► Tables            name, id, timestamp → descriptor: no message
                 │ not found, or a value of an unknown version met: read what is new
                 └ every `catalog.poll_interval`, or when a `CatalogWatch` rings (a feed): read what is new

How far a node may lag. A table made through another gateway is found at once: a name that is not known is looked for
before it is refused. A version published through another gateway is seen after at most the poll interval; until then this
node still accepts rows for the old version. Nothing is corrupted by that: rows say which version wrote them, and ids are
never used again. To rule it out takes leases on descriptors, which the schema-change work brings.

No row is committed at or after the timestamp at which its table was dropped (I-30). A node that has read the catalog up to
`upto` lets rows be committed below `upto + catalog.trust_duration`, and no higher:

    drop:    note "being dropped" at P ──── wait ────► P + trust ──► commit the drop at D > P + trust
    writer   knows of P: refuses.   does not: upto < P, so its rows lie below upto + trust < P + trust < D

Every write path carries that deadline to the range that evaluates it, where it is compared with the timestamp the write
really gets: `EndTxn.deadline` for transactions, writes at once and publishes, `Header.write_below` for blocks of a bulk load.
All of it is in timestamps, so it does not matter how far clocks differ. Leases will put their own end in the same place.

Files. Pure: `records` (keys and codec), `tables` (the cache), `definition` (what a table may look like). Awaiting:
`driver` (transactions, polling).
"""

from slackwater.catalog.driver import CatalogWatch, TableCatalog
from slackwater.catalog.tables import Tables

__all__ = ["CatalogWatch", "TableCatalog", "Tables"]
