"""The conditions of CHECKs: from their text to predicates, and whether a row satisfies them. Pure.

    price >= 0 and state in ('new', 'paid') and note is not null

Predicates of `model.predicates` joined by AND: a column, an operator, a literal. Names may stand in double quotes, texts stand in
single ones (two of them are one). A literal is brought to the type of its column when the condition is bound to a schema.

As in SQL, a row fails a check only where the condition is *false*. A comparison with NULL is unknown, and unknown passes: a
filter on the same predicate would drop the row. `is null` and `is not null` are never unknown.
"""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from slackwater.errors import UsageError
from slackwater.model.kinds import INTEGERS, TEXTS, ColumnKind
from slackwater.model.predicates import Op, Predicate, predicate
from slackwater.model.values import logical, parse_default, physical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slackwater.model.schema import Column, TableSchema

CONDITION_CHARS_MAX = 2_000
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_COMPARED = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}
_CONSTANTS: dict[str, object] = {"true": True, "false": False}
_WORDS = {"and", "is", "not", "null", "in", *_CONSTANTS}


def parse_condition(text: str) -> tuple[Predicate, ...]:
    """The predicates of a condition, with literals as they were written."""
    if not 0 < len(text) <= CONDITION_CHARS_MAX:
        raise UsageError(f"a condition has 1 to {CONDITION_CHARS_MAX} characters", characters=len(text))
    return _Parser(text).all()


def parse_literal(text: str) -> object:
    """A value as conditions and defaults write it: 5, 2.5, 'text', true, false."""
    return _Parser(text).only_literal()


def bind_condition(schema: TableSchema, text: str) -> tuple[Predicate, ...]:
    """The predicates of a condition on a table, with literals of their columns' types; the error says what does not fit."""
    return tuple(_bound(schema.column(found.column), found) for found in parse_condition(text))


def renamed_condition(text: str, old: str, new: str) -> str:
    """The condition after a column was renamed; as it was, unless it names the column."""
    found = parse_condition(text)
    if all(p.column != old for p in found):
        return text
    return show_condition(Predicate(new, p.op, p.literal) if p.column == old else p for p in found)


def show_condition(predicates: Iterable[Predicate]) -> str:
    """A condition as a text that `parse_condition` reads."""
    return " and ".join(_shown(p) for p in predicates)


def condition_holds(predicates: Sequence[Predicate], row: Mapping[str, Any]) -> bool:
    """Whether a row passes a check: false only where one predicate is false, not where it is unknown."""
    return all(_passes(p, row.get(p.column)) for p in predicates)


def _passes(found: Predicate, value: Any) -> bool:
    if found.op is Op.IS_NULL:
        return value is None
    if found.op is Op.IS_NOT_NULL:
        return value is not None
    if value is None:
        return True
    value = _comparable(value)
    if found.op is Op.IN:
        values = found.literal
        assert isinstance(values, list | tuple)
        return any(v is None or _comparable(v) == value for v in values)
    return found.literal is None or bool(_COMPARED[found.op](value, _comparable(found.literal)))


def _comparable(value: Any) -> Any:
    """Floats compare as their keys do: NaN equals itself and is above everything. Text compares by its UTF-8 bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return (1, 0.0) if value != value else (0, value)  # only NaN differs from itself
    return value


# --- binding


def _bound(column: Column, found: Predicate) -> Predicate:
    if column.type.kind is ColumnKind.JSON and found.op not in (Op.IS_NULL, Op.IS_NOT_NULL):
        raise UsageError(f"column {column.name} is json, which has no order; a check can only ask whether it is NULL")
    if found.op in (Op.IS_NULL, Op.IS_NOT_NULL):
        return found
    if found.op is Op.IN:
        values = found.literal
        assert isinstance(values, list | tuple)
        return Predicate(found.column, found.op, tuple(_literal(column, v) for v in values))
    return Predicate(found.column, found.op, _literal(column, found.literal))


def _literal(column: Column, value: object) -> object:
    if value is None:
        raise UsageError(f"column {column.name}: a comparison with NULL is never false; write `is not null`")
    kind = column.type.kind
    try:
        if isinstance(value, Decimal) and kind is ColumnKind.FLOAT:
            value = float(value)
        elif isinstance(value, Decimal) and kind in INTEGERS and value == int(value):
            value = int(value)
        elif not isinstance(value, str) and kind in TEXTS:
            raise UsageError(f"{value} is no text")  # noqa: TRY301 - said with the column below
        return logical(column.type, physical(column.type, parse_default(column.type, value)))
    except UsageError as error:
        raise UsageError(f"column {column.name} is {column.type}: {error.message}", literal=str(value)[:80]) from None


# --- text


def _shown(found: Predicate) -> str:
    name = found.column if _plain(found.column) else '"' + found.column.replace('"', '""') + '"'
    if found.op in (Op.IS_NULL, Op.IS_NOT_NULL):
        return f"{name} {found.op.value}"
    if found.op is Op.IN:
        values = found.literal
        assert isinstance(values, list | tuple)
        return f"{name} in ({', '.join(map(_shown_literal, values))})"
    return f"{name} {found.op.value} {_shown_literal(found.literal)}"


def _plain(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)) and name.lower() not in _WORDS


def _shown_literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Parser:
    """Reads one condition, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0

    def all(self) -> tuple[Predicate, ...]:
        found = [self._predicate()]
        while self._at < len(self._tokens):
            self._expect("and")
            found.append(self._predicate())
        return tuple(found)

    def only_literal(self) -> object:
        found = self._literal()
        if self._at < len(self._tokens):
            raise self._refusal("more than one value stands there")
        return found

    def _split(self, text: str) -> list[tuple[str, str]]:
        tokens, at, text = [], 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._refusal(f"it cannot be read from {text[at:][:20].strip()!r} on")
            kind = match.lastgroup
            assert kind is not None, "one of the groups has matched"
            tokens.append((kind, match.group(kind)))
            at = match.end()
        return tokens

    def _predicate(self) -> Predicate:
        column = self._column()
        kind, token = self._next("an operator")
        word = token.lower()
        if kind == "word" and word == "is":
            negated = self._taken("not")
            self._expect("null")
            return Predicate(column, Op.IS_NOT_NULL if negated else Op.IS_NULL)
        if kind == "word" and word == "in":
            self._expect("(")
            values = [self._literal()]
            while self._taken(","):
                values.append(self._literal())
            self._expect(")")
            return Predicate(column, Op.IN, tuple(values))
        if kind != "sign" or token in "(),":
            raise self._refusal(f"{token!r} is no operator; there are {', '.join(op.value for op in Op)}")
        return predicate(column, token, self._literal())

    def _column(self) -> str:
        kind, token = self._next("a column")
        if kind == "quoted":
            return token[1:-1].replace('""', '"')
        if kind != "word" or token.lower() in _WORDS:
            raise self._refusal(f"{token!r} stands where the name of a column should")
        return token

    def _literal(self) -> object:
        kind, token = self._next("a value")
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return int(token) if re.fullmatch(r"[+-]?\d+", token) else Decimal(token)
        if kind == "word" and token.lower() in _CONSTANTS:
            return _CONSTANTS[token.lower()]
        raise self._refusal(f"{token!r} stands where a value should; texts stand in single quotes")

    def _next(self, what: str) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._refusal(f"it ends where {what} should stand")
        self._at += 1
        return self._tokens[self._at - 1]

    def _taken(self, word: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][1].lower() == word:
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._taken(word):
            got = self._tokens[self._at][1] if self._at < len(self._tokens) else "its end"
            raise self._refusal(f"{word!r} should stand where {got!r} does")

    def _refusal(self, why: str) -> UsageError:
        return UsageError(
            f"cannot read the condition {self._text[:200]!r}: {why}; write predicates joined by AND, such as price >= 0"
        )
