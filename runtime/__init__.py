"""What every process needs: logs, settings, TLS, listening, background tasks, the command line."""
