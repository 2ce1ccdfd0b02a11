"""At the start of a node whose store met damage: a new engine beside the damaged one, which is kept.

    DIR/engine/DAMAGED          written when damage was met: the next start rebuilds
    DIR/engine.damaged-1        the old engine, moved aside first; an operator deletes it once all ranges are well
    DIR/engine.new              being written; moved to DIR/engine when it is complete

A start that is interrupted goes on where it was: as long as there is no DIR/engine, the newest engine that was moved aside is
copied again from its beginning.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from slackwater.errors import DamageError
from slackwater.replica.rebuild import copy_whole
from slackwater.storage.rocks import DAMAGED_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.runtime.seam import Disk
    from slackwater.server.journal import Journal

NEW = "engine.new"
ASIDE = "engine.damaged-"


async def rebuild_if_damaged(store: Path, engine: str, disk: Disk, journal: Journal) -> str:
    """Replace an engine that met damage by a copy of what is whole in it; nothing where none did.

    Returns why it cannot be replaced and what to do: then the engine is tried as it is. The error itself would keep iterators of
    the damaged engine, and with them its lock.
    """
    aside = _moved_aside(store)
    here = store / engine
    if (here / DAMAGED_FILE).exists():
        number = max(aside, default=0) + 1
        aside[number] = here.rename(store / f"{ASIDE}{number}")
    if here.exists() or not aside:
        return ""
    damaged = aside[max(aside)]
    journal.warn("store.rebuilding", damaged=damaged, why=(damaged / DAMAGED_FILE).read_text().strip())
    shutil.rmtree(store / NEW, ignore_errors=True)
    old, new = disk.open(damaged.name), disk.open(NEW)
    refused = ""
    try:
        done = copy_whole(old, new)
        await new.flush()
    except DamageError as error:
        journal.error("store.not_rebuilt", why=error)
        refused = error.message
    finally:
        new.close()
        old.close()
    if refused:
        # moved first: without a note in it, an engine aside could not be told from one that was never noted
        damaged.rename(here)
        (here / DAMAGED_FILE).unlink(missing_ok=True)
        return refused
    (store / NEW).rename(here)
    for range_id, why in done.left_out.items():
        journal.warn("store.left_out", range=f"r{range_id}", why=why)
    journal.warn("store.rebuilt", kept=len(done.kept), left_out=len(done.left_out), damaged=damaged)
    return ""


def _moved_aside(store: Path) -> dict[int, Path]:
    """Engines that were moved aside, by number."""
    numbered = ((path.name.removeprefix(ASIDE), path) for path in store.glob(f"{ASIDE}*"))
    return {int(number): path for number, path in numbered if number.isascii() and number.isdigit()}
