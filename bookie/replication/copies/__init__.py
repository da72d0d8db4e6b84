"""The copies of a ledger: what is due where, what bookies say of it, how copies are made and at which rate."""
