"""The entry port: connections, TLS and authentication, admission, adds, reads, long polls."""
