"""Files of a feed: one history, one set of names and bytes, however it was delivered and however often interrupted."""

import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.changefeed import files as module
from slackwater.changefeed.file_bytes import file_bytes
from slackwater.changefeed.files import (
    CONFIG_NAME,
    DataFile,
    DirectoryWriter,
    FeedConfig,
    FeedFiles,
    boundaries,
    data_path,
    final,
    leftovers,
    marker_path,
    read_path,
    resolved_upto,
)
from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.codec.bulk_arrow import pack
from slackwater.codec.envelope import Enveloper, Timeline
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError, InvariantViolation, StorageError, UsageError
from slackwater.model import kinds
from slackwater.model.changes import InitialPage
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.settle import Settling
from slackwater.protocol.feeds.events import Changes

SECOND = 1_000_000 << 10
DAY = from_us(1_794_700_800_000_000)
PEOPLE = TableSchema(
    5,
    "people",
    1,
    (Column(1, "id", kinds.INT, nullable=False), Column(2, "name", kinds.STRING), Column(3, "tag", kinds.UUID)),
    (KeyColumn(1),),
)
PLACES = TableSchema(6, "pla/ces", 1, (Column(1, "id", kinds.STRING, nullable=False),), (KeyColumn(1),))
TIMELINES = {5: Timeline([(MIN, PEOPLE)]), 6: Timeline([(MIN, PLACES)])}


def config(form="json", **changes):
    return FeedConfig(("people", "pla/ces"), form, 1.0, **({"after": DAY} | changes))


def at(seconds):
    return Timestamp(DAY + round(seconds * SECOND))


def person(number, seconds, name):
    key, value = RowCodec(PEOPLE).encode({"id": number, "name": name, "tag": bytes(range(16))})
    return key, at(seconds), b"" if name is None else value


def place(name, seconds):
    key, value = RowCodec(PLACES).encode({"id": name})
    return key, at(seconds), value


def block(events):
    return Changes(*map(list, zip(*events, strict=True))) if events else Changes([], [], [])


HISTORY = [
    person(1, 0.5, "Ada"),
    person(2, 0.5, "Bob"),
    place("Rome", 0.7),
    person(1, 1.0, "Ada L."),
    person(1, 1.2, None),
    place("Oslo", 3.5),
    person(3, 3.9, "Cid"),
]


def test_json_has_names_for_what_it_has_no_numbers_for():
    columns = (Column(1, "id", kinds.FLOAT, nullable=False), Column(2, "x", kinds.FLOAT))
    schema = TableSchema(7, "floats", 1, columns, (KeyColumn(1),))
    inf = float("inf")
    rows = [(1.5, None), (inf, -inf), (-inf, float("nan")), (0.0, 2.25)]
    codec = RowCodec(schema)
    pairs = [codec.encode({"id": a, "x": b}) for a, b in rows]
    changes = Changes(
        [k for k, _ in pairs], [at(1)] * 4, [v for _, v in pairs], befores=[b"", *(v for _, v in pairs[1:])]
    )
    (made,) = Enveloper(Timeline([(MIN, schema)]), befores=True, txn_ids=False).batches(changes)
    lines = [json.loads(line) for line in file_bytes(made, "json").splitlines()]
    shown = [(1.5, None), ("Infinity", "-Infinity"), ("-Infinity", "NaN"), (0.0, 2.25)]
    assert [(line["key"]["id"], line["after"]["x"]) for line in lines] == shown
    assert [line["before"] and (line["before"]["id"], line["before"]["x"]) for line in lines] == [None, *shown[1:]]


def test_paths_and_what_they_say():
    path = data_path(at(1), "pla/ces-é", 3, 2, "json")
    assert path == f"2026-11-15/{at(1):019d}-pla%2Fces%2D%C3%A9-0000000003-00002.json"
    assert read_path(path) == DataFile(at(1), "pla%2Fces%2D%C3%A9", 3, 2, "json")
    assert read_path(marker_path(at(1))) == at(1)
    assert read_path(CONFIG_NAME) is read_path("notes.txt") is None
    assert sorted([marker_path(at(1)), path, data_path(at(2), "a", 1, 0, "json")])[:2] == [path, marker_path(at(1))]


def test_windows_end_at_whole_multiples():
    assert list(boundaries(after=DAY, upto=at(2.5), step=SECOND)) == [at(1), at(2)]
    assert list(boundaries(after=at(0.3), upto=at(1), step=SECOND)) == [at(1)]
    assert list(boundaries(after=at(1), upto=at(1), step=SECOND)) == []


def written(form, deliveries, resolved, root=None, **changes):
    made = FeedFiles(config(form, **changes), TIMELINES)
    found = {}
    for events, upto in zip(deliveries, resolved, strict=True):
        made.add(block(events))
        found |= {f.path: f.content for f in made.advance(upto)}
    return found


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_one_history_one_set_of_files(form):
    once = written(form, [HISTORY], [at(4)])
    jumbled = [HISTORY[4:], HISTORY[:5], HISTORY[::-1]]
    pieces = written(form, [*jumbled, []], [DAY, DAY, at(0.9), at(4.2)])
    assert pieces == once
    assert [p for p in sorted(once) if p.endswith("RESOLVED")] == [marker_path(at(s)) for s in (1, 2, 3, 4)]
    assert len(once) == 4 + 5


def test_lines_say_what_happened():
    once = written("json", [HISTORY], [at(4)])
    lines = [json.loads(line) for path in final(once) for line in once[path].splitlines()]
    assert [(line["table"], line["op"], line["key"]["id"]) for line in lines] == [
        ("people", "upsert", 1), ("people", "upsert", 2), ("people", "upsert", 1), ("pla/ces", "upsert", "Rome"),
        ("people", "delete", 1), ("people", "upsert", 3), ("pla/ces", "upsert", "Oslo"),
    ]  # fmt: skip
    assert lines[0]["after"] == {"id": 1, "name": "Ada", "tag": "00010203-0405-0607-0809-0a0b0c0d0e0f"}
    assert lines[4]["after"] is None
    assert lines[0]["commit_ts"] == at(0.5)


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_resume_from_the_directory_after_every_file(tmp_path, form):
    """Killed after each single file, the directory ends up the same, byte for byte."""
    whole = written(form, [HISTORY], [at(4)])
    for cut in range(len(whole) + 1):
        root = tmp_path / str(cut)
        count = 0
        for life in range(3):
            writer = DirectoryWriter(root)
            known, done = writer.begin(config(form, after=DAY if life == 0 else at(9)))
            made = FeedFiles(known, TIMELINES, done=done)
            made.add(block([e for e in HISTORY if e[1] > made.done]))
            for file in made.advance(at(4)):
                if life == 0 and count == cut:
                    (root / (file.path + ".tmp")).parent.mkdir(parents=True, exist_ok=True)
                    (root / (file.path + ".tmp")).write_bytes(file.content[:7])
                    break
                writer.write(file)
                count += 1
        kept = {p: (root / p).read_bytes() for p in writer.paths() if p != CONFIG_NAME}
        assert kept == whole


def test_initial_scan_in_parts(monkeypatch):
    monkeypatch.setattr(module, "FILE_ROWS", 2)
    rows = [person(i, -100 + i, f"p{i}") for i in range(5)] + [place("Oslo", -3), place("Rome", -5)]

    def scanned(*sizes):
        made = FeedFiles(config(initial_scan=True, befores=True), TIMELINES)
        with pytest.raises(InvariantViolation):
            list(made.advance(at(1)))
        files, start = [], 0
        for size in sizes:
            files += made.scan(block(rows[start : start + size]))
            start += size
        return [*files, *made.finish_scan()]

    whole = scanned(7)
    assert whole == scanned(1, 1, 1, 1, 1, 1, 1) == scanned(3, 4)
    assert [len(f.content.splitlines()) for f in whole] == [2, 2, 1, 2, 1]
    assert [f.path for f in whole] == sorted(f.path for f in whole)
    assert whole[-1].path == marker_path(DAY)
    assert json.loads(whole[0].content.splitlines()[0])["op"] == "insert"
    assert FeedFiles(config(initial_scan=True), TIMELINES, done=DAY).scanned


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.parametrize("befores", [False, True])
def test_a_scan_that_comes_as_columns_makes_the_same_files(monkeypatch, form, befores):
    monkeypatch.setattr(module, "FILE_ROWS", 3)
    people, places = [person(i, 0, f"p{i}") for i in range(7)], [place("Oslo", 0), place("Rome", 0)]
    asked = config(form, initial_scan=True, befores=befores)
    of_rows = FeedFiles(asked, TIMELINES)
    expected = [*of_rows.scan(block(people + places)), *of_rows.finish_scan()]
    for size in (1, 2, 5, 7):
        made = FeedFiles(asked, TIMELINES)
        files = []
        for schema, rows in ((PEOPLE, people), (PLACES, places)):
            decode = BlockDecoder(schema, {1: schema}).decode
            for start in range(0, len(rows), size):
                batch = decode([value for _, _, value in rows[start : start + size]])
                files += made.scan_page(InitialPage(schema.table_id, 1, DAY, batch.num_rows, [pack(batch)]))
        assert [*files, *made.finish_scan()] == expected
    with pytest.raises(DecodeError, match="version"):
        FeedFiles(asked, TIMELINES).scan_page(InitialPage(5, 9, DAY, 0, []))


def test_the_last_window_may_be_shorter():
    made = FeedFiles(config(), TIMELINES)
    made.add(block(HISTORY))
    found = [f.path for f in made.finish(at(3.6))]
    assert found[-1] == marker_path(at(3.6))
    assert sum(p.endswith("json") for p in found) == 4


def test_large_windows_are_cut(monkeypatch):
    monkeypatch.setattr(module, "FILE_ROWS", 2)
    found = written("json", [HISTORY], [at(1)])
    assert [p.rsplit("-", 1)[1] for p in sorted(found)[:3]] == ["00000.json", "00001.json", "00000.json"]


def test_parquet_reads_back(tmp_path):
    once = written("parquet", [HISTORY], [at(1)])
    path = tmp_path / "x.parquet"
    path.write_bytes(once[min(once)])
    assert pq.read_table(path).column("name").to_pylist() == ["Ada", "Bob", "Ada L."]


def test_what_is_left_over_and_what_is_final():
    one, two = data_path(at(1), "t", 1, 0, "json"), data_path(at(2), "t", 1, 0, "json")
    paths = [two, marker_path(at(1)), one, "x.tmp", CONFIG_NAME]
    assert leftovers(paths) == sorted([two, "x.tmp"])
    assert final(paths) == [one]
    assert resolved_upto([one]) is None


def test_other_feeds_and_broken_directories_are_refused(tmp_path):
    writer = DirectoryWriter(tmp_path)
    writer.begin(config())
    with pytest.raises(UsageError, match="another feed"):
        writer.begin(config("parquet"))
    (tmp_path / CONFIG_NAME).write_text("{")
    with pytest.raises(DecodeError):
        writer.begin(config())
    stray = tmp_path / "stray"
    (stray / "2026-11-15").mkdir(parents=True)
    (stray / marker_path(at(1))).write_text("")
    with pytest.raises(UsageError, match=r"no _feed\.json"):
        DirectoryWriter(stray).begin(config())
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        DirectoryWriter(tmp_path / "file").write(module.marker(at(1)))
    for wrong in ({"interval_s": 0.0}, {"form": "csv"}):
        with pytest.raises(UsageError):
            FeedConfig(**({"tables": (), "form": "json", "interval_s": 1.0, "after": MIN} | wrong))


def test_changes_of_unknown_tables_are_refused():
    made = FeedFiles(config(), {6: TIMELINES[6]})
    made.add(block(HISTORY))
    with pytest.raises(UsageError):
        list(made.advance(at(1)))


EVENTS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 20)), max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 6)), max_size=5))
def test_settling_releases_everything_once_in_order(steps):
    settling, upto, out, added = Settling(), 0, [], set()
    for events, further in steps:
        settling.add(block([(k, ts, k + bytes([ts])) for k, ts in events]))
        added |= {(ts, k) for k, ts in events if ts > upto}
        upto += further
        released = settling.release(Timestamp(upto))
        out += zip(released.timestamps, released.keys, strict=True)
        assert all(v == k + bytes([ts]) for k, ts, v in zip(*_columns(released), strict=True))
    assert out == sorted(e for e in added if e[0] <= upto)
    rest = settling.release(Timestamp(99))
    assert len(rest) == len(added) - len(out)
    assert settling.bytes == 0


def _columns(changes):
    return changes.keys, changes.timestamps, changes.values


def test_settling_says_when_it_is_full():
    settling = Settling(bytes_max=100)
    settling.add(block([(b"k" * 80, 5, b"v")]))
    assert settling.full
    settling.release(Timestamp(5))
    assert not settling.full
    with pytest.raises(InvariantViolation):
        settling.release(Timestamp(4))
