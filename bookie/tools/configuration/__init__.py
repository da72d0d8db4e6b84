"""The settings of bookie, gateway and client, for the operator: shown, checked, described, taken from BookKeeper."""
