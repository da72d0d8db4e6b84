"""Limbo: verifies ledgers of which a bookie may have lost entries, before they count as complete again."""
