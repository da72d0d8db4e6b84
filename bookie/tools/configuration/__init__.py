"""Settings of bookie, gateway and client, for operators: shown, checked, described, converted from BookKeeper's."""
