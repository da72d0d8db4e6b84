"""Who is lost, and which ledgers that touches: the auditor, its rules and its index."""
