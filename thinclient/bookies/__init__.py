"""Connections to bookies: TCP, TLS, authentication, both protocol versions, reconnecting."""
