"""The copies of a ledger: where entries should be, what bookies say they hold, how and how fast they are copied."""
