"""Recovery: a consistent cluster from whatever stores survive, without the log and without the nodes that are gone.

Closed timestamps are durable, so a store knows by itself up to which timestamp each of its replicas is complete. Over all
surviving stores:

    n1   r1 complete to 140   r2 to 90    r3 to 120       every key needs one replica that has it all up to T
    n2                        r2 to 135   r3 to 118       T = min over keys of the best replica's time = 120
    n3   gone

    at T    versions above T are dropped; intents of transactions that are known to have committed at or below T become
            versions, all others go. Nothing at or below T can be missing (CLOSED), so all tables are as they were at T.

An intent whose transaction cannot be judged (its record was lost, or only says *pending*) holds T below itself: the
transaction may have committed, and then other ranges may show its writes. Final records are believed wherever they are found:
an outcome never changes.

    survey   reads the stores: identity, replicas, what each has closed, whether it holds what its statistics say
    plan     which replica is used for which keys, T, what limits it, which keys are lost, and what that means for tables
    build    a new store with all of it at T: one node of a new cluster on a new log, which others join as usual

Rules
    I-37  A recovered cluster equals the old one's history at T; no part of a transaction is there without the rest.
    The old stores are only read. The new cluster has another name and another log, so a node of the old one that comes back is
    refused by both (`server.identity`).
"""

from slackwater.server.recovery.build import RebuiltStore, build
from slackwater.server.recovery.plan import RecoveryPlan, make_plan
from slackwater.server.recovery.survey import Survivor, survey

__all__ = ["RebuiltStore", "RecoveryPlan", "Survivor", "build", "make_plan", "survey"]
