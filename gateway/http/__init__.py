"""The HTTP framework of every process: routing, access, OpenAPI, errors, serving."""
