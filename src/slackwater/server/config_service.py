"""Settings and span configuration over RPC: what an operator may change of a running cluster.

    admin.settings             what is set for the whole cluster
    admin.change_setting       set one on every node, or let every node go by what it was started with
    admin.span_configs         every span's configuration
    admin.change_span_config   change some of a span's configuration, keep the rest of it
    admin.remove_span_config   let a span be as the rest again

The node that is asked checks the change and writes the record; nobody but a node has to write to the system's keys for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.errors import UnavailableError, UsageError
from slackwater.protect.zone_changes import change_zone, read_zones, unset_zone
from slackwater.runtime.access import OPERATORS
from slackwater.runtime.rpc.method import Method
from slackwater.server.cluster_settings import read_settings, reset_setting, write_setting
from slackwater.settings import SETTINGS

if TYPE_CHECKING:
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.node import Node
    from slackwater.txn.kv import KV

KEY_BYTES_MAX = 4096
"""Of a bound of a span."""


class SettingsRequest(msgspec.Struct, frozen=True):
    """Nothing to say."""


class ChangeSetting(msgspec.Struct, frozen=True):
    """None: as every node was started."""

    name: str
    value: float | None = None


class SettingsReply(msgspec.Struct, frozen=True):
    """What is set for the whole cluster."""

    values: dict[str, float]


class SpanConfigsRequest(msgspec.Struct, frozen=True):
    """Nothing to say."""


class ChangeSpanConfig(msgspec.Struct, frozen=True):
    """Of `[start, end)`, or of the rest when both are empty; None leaves a field as it is."""

    start: bytes
    end: bytes
    replication_factor: int | None = None
    policy: PolicyKind | None = None
    duration_ms: int | None = None


class RemoveSpanConfig(msgspec.Struct, frozen=True):
    """Of the span with these bounds."""

    start: bytes
    end: bytes


class SpanConfigsReply(msgspec.Struct, frozen=True):
    """All of them, or those that were changed or removed."""

    configs: list[ZoneConfig]


READ_SETTINGS: Method[SettingsRequest, SettingsReply] = Method(
    "admin.settings", SettingsRequest, SettingsReply, callers=OPERATORS
)
CHANGE_SETTING: Method[ChangeSetting, SettingsReply] = Method(
    "admin.change_setting", ChangeSetting, SettingsReply, callers=OPERATORS
)
READ_SPAN_CONFIGS: Method[SpanConfigsRequest, SpanConfigsReply] = Method(
    "admin.span_configs", SpanConfigsRequest, SpanConfigsReply, callers=OPERATORS
)
CHANGE_SPAN_CONFIG: Method[ChangeSpanConfig, SpanConfigsReply] = Method(
    "admin.change_span_config", ChangeSpanConfig, SpanConfigsReply, callers=OPERATORS
)
REMOVE_SPAN_CONFIG: Method[RemoveSpanConfig, SpanConfigsReply] = Method(
    "admin.remove_span_config", RemoveSpanConfig, SpanConfigsReply, callers=OPERATORS
)


class ConfigService:
    """Serves the methods above on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        server = node.server
        server.handle(READ_SETTINGS, self._on_read_settings)
        server.handle(CHANGE_SETTING, self._on_change_setting)
        server.handle(READ_SPAN_CONFIGS, self._on_read_zones)
        server.handle(CHANGE_SPAN_CONFIG, self._on_change_config)
        server.handle(REMOVE_SPAN_CONFIG, self._on_remove_config)

    @property
    def _kv(self) -> KV:
        if self._node.store is None:
            raise UnavailableError("this node belongs to no cluster yet; run `slackwater init`")
        return self._node.kv

    async def _on_read_settings(self, request: SettingsRequest, context: Context) -> SettingsReply:
        return SettingsReply(await read_settings(self._kv))

    async def _on_change_setting(self, request: ChangeSetting, context: Context) -> SettingsReply:
        if request.value is not None:
            await write_setting(self._kv, request.name, request.value)
        elif request.name in {setting.name for setting in SETTINGS}:
            await reset_setting(self._kv, request.name)
        else:
            raise UsageError("no setting has this name; `slackwater settings` lists them", name=request.name[:80])
        return SettingsReply(await read_settings(self._kv))

    async def _on_read_zones(self, request: SpanConfigsRequest, context: Context) -> SpanConfigsReply:
        _ = self._kv
        return SpanConfigsReply([z.config for z in (await read_zones(self._kv)).records])

    async def _on_change_config(self, request: ChangeSpanConfig, context: Context) -> SpanConfigsReply:
        _check_bounds(request.start, request.end)
        changed = await change_zone(
            self._kv,
            request.start,
            request.end,
            replication_factor=request.replication_factor,
            policy=request.policy,
            duration_ms=request.duration_ms,
            timeout=context.remaining(),
        )
        return SpanConfigsReply([changed])

    async def _on_remove_config(self, request: RemoveSpanConfig, context: Context) -> SpanConfigsReply:
        _check_bounds(request.start, request.end)
        was = await unset_zone(self._kv, request.start, request.end, timeout=context.remaining())
        return SpanConfigsReply([ZoneConfig(request.start, request.end)] if was else [])


def _check_bounds(start: bytes, end: bytes) -> None:
    if max(len(start), len(end)) > KEY_BYTES_MAX:
        raise UsageError(f"a bound of a span has at most {KEY_BYTES_MAX} bytes")
