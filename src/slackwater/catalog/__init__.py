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
before it is refused. A version published through another gateway is heard of at once, or found within the poll interval.

Writes go by *leases* (`leases`): a node writes to a table by a version only while it holds a lease on that version, a row of
`system.lease`. Version v+1 is published when no lease on v-1 is left, so at any time at most two versions are in use (I-29):

    v-1 ────────────── used by writes that began with it ────────────┐ last one ends, lease released
    v          published ─────────── new writes ─────────────────────┼──────────────────────────►
    v+1                                  publishing waits ...........┘ published

Every write path carries the end of its lease, the frontier F, to the range that evaluates it, where it is compared with the
timestamp the write really gets (I-30): `EndTxn.deadline` for transactions, writes at once and publishes, `Header.write_below` for
blocks of a bulk load. All of it is in timestamps, so it does not matter how far clocks differ.

Dropping a table takes two versions: by the first it takes no more rows, and the second, which waits for writes by the version
before the first, says that it is dropped. So no row is committed at or after the drop.

Files. Pure: `records` (keys and codec), `tables` (the cache), `definition` (what a table may look like), `leases`, `ladder` and
`climbing` (the steps of a schema change), `planning` (what a write means for indexes). Awaiting: `driver` (transactions,
polling), `lease_driver` (acquiring, releasing, deleting what dead nodes have left), `lease_report`, `schema_changes`, `backfill`
with `filling` and `bulk_fill` (an index from the rows that were there before it).
"""

from slackwater.catalog.driver import CatalogWatch, TableCatalog
from slackwater.catalog.tables import Tables

__all__ = ["CatalogWatch", "TableCatalog", "Tables"]
