"""Where an entry lies: the index in files, and in RocksDB."""
