"""What every process needs: logs, settings, TLS, listening, background tasks and the command line."""
