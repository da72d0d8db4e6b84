"""What a bookie exposes to Prometheus."""
