"""Certificate files that change while a process runs, the server's TLS contexts made of them, and TLS in memory."""
