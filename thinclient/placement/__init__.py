"""The choice of bookies for ensembles: racks, weights, quarantine, the list of writable bookies."""
