"""The client without ZooKeeper: its public names are in `bookgate`, without asyncio in `bookgate.blocking`."""
