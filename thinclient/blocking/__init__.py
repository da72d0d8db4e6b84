"""The client without asyncio, and the thread whose event loop carries it."""
