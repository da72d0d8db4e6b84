"""The commands that need a network and no disk: `bookgate ledger|bookie|cluster|gateway|gc|bench`."""
