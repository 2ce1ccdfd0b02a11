"""What an operator decides about keys: zones, each with its replicas, its closing policy and how long history is kept.

Pure: records and what follows from them. The transactions that write them stand in `slackwater.protect.zone_changes`, because a
change of how long history is kept must be ordered against protections; every node's copy is kept by `server`.
"""
