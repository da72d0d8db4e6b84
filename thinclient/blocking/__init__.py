"""The client without asyncio, generated from the asynchronous one, and the thread whose event loop carries it."""
