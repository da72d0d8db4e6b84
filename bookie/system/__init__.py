"""The seam to the operating system: files, threads, and what counts as lost data."""
