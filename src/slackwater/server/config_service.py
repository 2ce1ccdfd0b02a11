"""Settings and zones over RPC: what an operator may change of a running cluster.

    admin.settings         what is set for the whole cluster
    admin.change_setting   set one on every node, or let every node go by what it was started with
    admin.zones            every zone's configuration, and what holds for one key
    admin.change_zone      change some of a zone's configuration, keep the rest of it
    admin.unset_zone       let a span be as the rest again

The node that is asked checks the change and writes the record; an operator's tool never writes to the system's keys itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.config.zones import ZoneConfig
from slackwater.errors import UsageError
from slackwater.protect.zone_changes import change_zone, read_zones, unset_zone
from slackwater.protocol.node.config import (
    CHANGE_SETTING,
    CHANGE_ZONE,
    READ_SETTINGS,
    READ_ZONES,
    UNSET_ZONE,
    ChangeSetting,
    ChangeZone,
    SettingsReply,
    SettingsRequest,
    UnsetZone,
    ZonesReply,
    ZonesRequest,
)
from slackwater.server.cluster_settings import read_settings, reset_setting, write_setting
from slackwater.server.lease_settings import ABANDONED, DURATION, change_in_order
from slackwater.settings import SETTINGS

if TYPE_CHECKING:
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.member import Member
    from slackwater.txn import Transaction
    from slackwater.txn.kv import KV

KEY_BYTES_MAX = 4096
"""Of a bound of a span."""


class ConfigService:
    """Serves the methods of `protocol.node.config` on one node."""

    def __init__(self, member: Member) -> None:
        self._member = member
        server = member.server
        server.handle(READ_SETTINGS, self._on_read_settings)
        server.handle(CHANGE_SETTING, self._on_change_setting)
        server.handle(READ_ZONES, self._on_read_zones)
        server.handle(CHANGE_ZONE, self._on_change_config)
        server.handle(UNSET_ZONE, self._on_remove_config)

    @property
    def _kv(self) -> KV:
        return self._member.kv

    async def _on_read_settings(self, request: SettingsRequest, context: Context) -> SettingsReply:
        return SettingsReply(await read_settings(self._kv))

    async def _on_change_setting(self, request: ChangeSetting, context: Context) -> SettingsReply:
        if request.name in (DURATION, ABANDONED):
            await self._change_in_order(request)
        elif request.value is not None:
            await write_setting(self._kv, request.name, request.value)
        elif request.name in {setting.name for setting in SETTINGS}:
            await reset_setting(self._kv, request.name)
        else:
            raise UsageError("no setting has this name; `slackwater settings` lists them", name=request.name[:80])
        return SettingsReply(await read_settings(self._kv))

    async def _change_in_order(self, request: ChangeSetting) -> None:
        """One of the two settings of leases on descriptors: refused unless the other one allows it."""
        member = self._member

        async def work(txn: Transaction) -> None:
            await member.liveness.refresh()
            await change_in_order(
                txn,
                request.name,
                request.value,
                started_with=member.cluster_settings.started_with,
                records=member.liveness.all(),
                now=member.clock.now(),
            )

        await self._kv.run(work)

    async def _on_read_zones(self, request: ZonesRequest, context: Context) -> ZonesReply:
        zones = await read_zones(self._kv)
        values = zones.explained(request.key, self._member.settings) if request.key else {}
        return ZonesReply([zone.config for zone in zones.records if zone.config.decides], values)

    async def _on_change_config(self, request: ChangeZone, context: Context) -> ZonesReply:
        _check_bounds(request.start, request.end)
        changed = await change_zone(
            self._kv,
            request.start,
            request.end,
            replication_factor=request.replication_factor,
            policy=request.policy,
            duration_ms=request.duration_ms,
            gc_ttl_s=request.gc_ttl_s,
            timeout=context.remaining(),
        )
        return ZonesReply([changed])

    async def _on_remove_config(self, request: UnsetZone, context: Context) -> ZonesReply:
        _check_bounds(request.start, request.end)
        was = await unset_zone(self._kv, request.start, request.end, timeout=context.remaining())
        return ZonesReply([ZoneConfig(request.start, request.end)] if was else [])


def _check_bounds(start: bytes, end: bytes) -> None:
    if max(len(start), len(end)) > KEY_BYTES_MAX:
        raise UsageError(f"a bound of a span has at most {KEY_BYTES_MAX} bytes")
