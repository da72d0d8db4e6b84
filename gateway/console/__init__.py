"""The console of an operator: pages, and the routes that answer what the pages ask."""
