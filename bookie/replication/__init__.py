"""Auto-recovery: the auditor, which marks ledgers whose copies are lost, and the worker, which repairs marked ledgers.

Both meet in the metadata store only (`bookgate.ledger.replication_store`), so that either may be BookKeeper's. Rooms:
`audits`, lost bookies and the ledgers concerned; `checks`, the auditor's periodic checks; `repairs`, the worker;
`copies`, which all of them use. Source: docs/protocol/auto-recovery.md#auto-recovery.
"""
