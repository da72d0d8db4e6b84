"""A metadata store in one JSON file: `tiny:///absolute/directory`. Bookgate finds it by its entry points only."""
