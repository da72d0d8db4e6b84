"""What all metadata stores share: drivers, URIs, settings, listeners, claims, bounded reads."""
