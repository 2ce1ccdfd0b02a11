"""Tables whose closing is off: nothing of them is ever resolved, and a caller that would wait for that gets `NotClosing` instead.

A table may close nothing because a span configuration says so (its own, one of a part of it, the one for the rest of the keys),
because the cluster's `closed_timestamp.target_duration` is 0, or because only tables with a policy of their own close
(`closed_timestamp.activation`). A table at rest is woken by its feed, and not refused. The copy of the configuration that this
node has may be a few seconds old, so it is read again before a table is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.closedts.activation import Activation, activation_of
from slackwater.closedts.policy import ClosingPolicy, terms_of
from slackwater.codec.layout import schema_span, show_key
from slackwater.config.zones import PolicyKind
from slackwater.errors import NotClosing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.gateway.node import GatewayNode
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableHistory


async def check_closing(node: GatewayNode, tables: Iterable[TableHistory]) -> None:
    """Raise `NotClosing` when one of the tables, or a part of it, closes nothing."""
    listed = list(tables)
    if not any(_is_off(node, schema_span(history.latest.schema)) for history in listed):
        return
    await node.zone_follower.read()
    for history in listed:
        name, span = history.latest.name, schema_span(history.latest.schema)
        if _is_off(node, span):
            why, remedy = _why(node, name, span)
            raise NotClosing(
                f"table {name} closes nothing: {why}, so nothing of it is ever resolved, and a change feed of it would wait"
                f" for ever; {remedy}, and open the feed again (`slackwater frontier` shows what closes)",
                table=name,
                policy=PolicyKind.OFF.value,
            )


def _is_off(node: GatewayNode, span: Span) -> bool:
    return _not_activated(node, span) or _switched_off(node, span)


def _not_activated(node: GatewayNode, span: Span) -> bool:
    activation = activation_of(node.settings["closed_timestamp.activation"])
    return activation is Activation.CONFIGURED and not node.policies.spans.configured(span.start, span.end)


def _switched_off(node: GatewayNode, span: Span) -> bool:
    terms = terms_of(node.settings)
    return _closes_nothing(node.policies.spans.of(span.start, span.end, terms), terms.target_duration_s)


def _closes_nothing(policy: ClosingPolicy, target_duration_s: float) -> bool:
    lags = policy.kind is PolicyKind.LAG and not policy.duration_ms
    return policy.kind is PolicyKind.OFF or (lags and target_duration_s <= 0)


def _why(node: GatewayNode, name: str, span: Span) -> tuple[str, str]:
    """What switched it off, and what switches it on again."""
    remedy = f"have it closed with `slackwater zone set {name} --policy lag`"
    configs = node.zone_follower.configs
    own = [c for c in configs if not c.is_rest and c.start < span.end and span.start < c.end]
    for config in own:
        if config.policy is PolicyKind.OFF and config.start <= span.start and span.end <= config.end:
            return "its policy is `off`", remedy
        if config.policy is PolicyKind.OFF:
            part = f"[{show_key(config.start)}, {show_key(config.end)})"
            return (
                f"the policy of its part {part} is `off`",
                "give that part the policy `lag` with slackwater zone",
            )
    if _not_activated(node, span):
        return (
            "closed_timestamp.activation is `configured`, and it has no policy of its own",
            f"{remedy}, or set the activation to `configured-or-on-demand` with `slackwater settings set`",
        )
    if any(config.is_rest and config.policy is PolicyKind.OFF for config in configs):
        return "it has no policy of its own, and that of the rest of the keys is `off` (zone --rest)", remedy
    return (
        "it lags by the cluster's setting, and closed_timestamp.target_duration is 0",
        "set that to a number of seconds with `slackwater settings set`, or have the table closed with"
        f" `slackwater zone set {name} --policy lag --duration-ms 3000`",
    )
