"""The bugs to plant, an area a module."""
