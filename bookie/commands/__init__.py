"""The commands that need a bookie's disks: `bookgate bookie|cookie|inspect|doctor|config|standalone|run`."""
