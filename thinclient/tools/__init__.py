"""Parts of commands that use a client: sanity, load, reading one replica, adoption, the HTTP admin's client."""
