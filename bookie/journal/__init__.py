"""The journal: its format, its files, the thread that makes adds durable, the last marks."""
