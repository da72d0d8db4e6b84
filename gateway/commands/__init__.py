"""The commands that need a metadata store: `bookgate gateway|cluster`."""
