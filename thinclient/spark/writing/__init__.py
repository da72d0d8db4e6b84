"""The sink: tasks write ledgers, the driver commits them."""
