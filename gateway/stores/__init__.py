"""What every metadata store shares: drivers, URIs, settings, listeners, claims, bounded reads."""
