"""Settings of the whole cluster: one record each, in force on every node as soon as it hears of it.

    system("setting", name) → value        announced by feed, read every `feed.poll_interval` (`server/announcements.py`)

A record overrides what the node was started with; when it is removed, that counts again. A value outside the safe range is
refused when it is written, and ignored by a node that meets one all the same: a node of another version may know better.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.config.setting_records import decode_setting, encode_setting, setting_key, setting_name, settings_span
from slackwater.errors import DecodeError, InvalidSetting, UnknownSetting
from slackwater.hooks import probe
from slackwater.settings import Settings

if TYPE_CHECKING:
    from slackwater.txn import Transaction
    from slackwater.txn.kv import KV


async def write_setting(kv: KV, name: str, value: float) -> None:
    """Have a setting in force on every node."""
    Settings().set(name, value)  # refuses unknown names and unsafe values
    await kv.put(setting_key(name), encode_setting(value))


async def reset_setting(kv: KV, name: str) -> None:
    """Let every node go by what it was started with."""
    await kv.delete(setting_key(name))


async def read_settings(kv: KV) -> dict[str, float]:
    """What is set for the whole cluster; records that cannot be decoded are left out."""
    span, found = settings_span(), {}
    rows = await kv.scan(span.start, span.end)
    for key, value in zip(rows.keys, rows.values, strict=True):
        with suppress(DecodeError):
            found[setting_name(key)] = decode_setting(value)
    return found


async def put_setting(txn: Transaction, name: str, value: float | None) -> None:
    """Write a setting's record in a transaction of the caller's, who has checked it; None removes it."""
    if value is None:
        await txn.delete(setting_key(name))
    else:
        await txn.put(setting_key(name), encode_setting(value))


async def setting_in(txn: Transaction, name: str) -> float | None:
    """What is set for the whole cluster, as a transaction sees it; None: nothing is."""
    found = await txn.get(setting_key(name))
    return None if found is None else decode_setting(found)


class ClusterSettings:
    """Puts records into a node's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._own: dict[str, float] = {}
        """What the node was started with, of those that are overridden."""

    def started_with(self, name: str) -> float:
        """What holds on this node when nothing is set for the whole cluster."""
        return self._own.get(name, self._settings[name])

    def heard(self, key: bytes, value: bytes) -> None:
        """A record changed, or went."""
        try:
            name = setting_name(key)
            if not value:
                if name in self._own:
                    self._settings.override({name: self._own.pop(name)})
                return
            new = decode_setting(value)
            before = self._settings[name]
            self._settings.set(name, new)
        except (DecodeError, UnknownSetting, InvalidSetting):
            probe("settings.not_understood")
            return
        self._own.setdefault(name, before)
