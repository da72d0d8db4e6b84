"""Ledgers of which a bookie may have lost something are verified here before they count as whole again."""
