"""Verifies ledgers of which a bookie may have lost something, before they count as complete again."""
