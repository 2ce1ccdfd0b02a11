"""Settings and zones: what an operator reads and changes of a running cluster. Served by `server/config_service.py`."""

from __future__ import annotations

import msgspec

from slackwater.config.zones import PolicyKind, Sourced, ZoneConfig
from slackwater.model.ids import Whole
from slackwater.runtime.access import OPERATORS
from slackwater.runtime.rpc.method import HEAVY, Method


class SettingsRequest(msgspec.Struct, frozen=True):
    """Asks for all settings."""


class ChangeSetting(msgspec.Struct, frozen=True):
    """Sets one setting for the whole cluster; None: every node goes by what it was started with."""

    name: str
    value: float | None = None


class SettingsReply(msgspec.Struct, frozen=True):
    """What is set for the whole cluster."""

    values: dict[str, float]


class ZonesRequest(msgspec.Struct, frozen=True):
    """All records; with a key, also what holds for it."""

    key: bytes = b""


class ChangeZone(msgspec.Struct, frozen=True):
    """Changes the zone of `[start, end)`, or of the rest when both are empty; None leaves a field as it is."""

    start: bytes
    end: bytes
    replication_factor: Whole | None = None
    policy: PolicyKind | None = None
    duration_ms: Whole | None = None
    gc_ttl_s: float | None = None


class UnsetZone(msgspec.Struct, frozen=True):
    """Removes the zone with these bounds; the span is as the rest again."""

    start: bytes
    end: bytes


class ZonesReply(msgspec.Struct, frozen=True):
    """All of them, or those that were changed or removed."""

    configs: list[ZoneConfig]
    values: dict[str, Sourced] = {}
    """What holds for the key that was asked for, with where each value comes from."""


READ_SETTINGS: Method[SettingsRequest, SettingsReply] = Method(
    "admin.settings", SettingsRequest, SettingsReply, callers=OPERATORS
)
CHANGE_SETTING: Method[ChangeSetting, SettingsReply] = Method(
    "admin.change_setting", ChangeSetting, SettingsReply, callers=OPERATORS, weight=HEAVY
)
READ_ZONES: Method[ZonesRequest, ZonesReply] = Method("admin.zones", ZonesRequest, ZonesReply, callers=OPERATORS)
CHANGE_ZONE: Method[ChangeZone, ZonesReply] = Method(
    "admin.change_zone", ChangeZone, ZonesReply, callers=OPERATORS, weight=HEAVY
)
UNSET_ZONE: Method[UnsetZone, ZonesReply] = Method(
    "admin.unset_zone", UnsetZone, ZonesReply, callers=OPERATORS, weight=HEAVY
)
