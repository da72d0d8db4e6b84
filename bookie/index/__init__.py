"""The index of entry locations: in files, or in RocksDB."""
