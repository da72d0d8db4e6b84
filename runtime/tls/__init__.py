"""Certificate files that change while a process runs, and the server's TLS contexts made of them."""
