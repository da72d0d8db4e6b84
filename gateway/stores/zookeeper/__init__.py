"""Ledger metadata in ZooKeeper, with Apache BookKeeper's layout. Needs the extra `bookgate[zookeeper]`."""
