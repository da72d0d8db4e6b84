"""Which bookies a new ensemble has: racks, weights, quarantine, the list of writable bookies."""
