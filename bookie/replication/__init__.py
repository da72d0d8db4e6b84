"""Auto-recovery: the auditor, which marks ledgers whose copies are lost, and the worker, which repairs what is marked.

Both meet in the metadata store only (`bookgate.ledger.replication_store`), so that either may be BookKeeper's. Rooms:
`audits`, who is lost and which ledgers that touches; `checks`, what an auditor looks at now and then; `repairs`, the
worker; `copies`, which all of them use. Source: docs/protocol/auto-recovery.md#auto-recovery.
"""
