"""Lost bookies and the ledgers concerned: the auditor, its rules and its index."""
