"""Rules of streams: producers and batches, searches by time and size, cursors, retention; all pure."""
