"""The metadata of every ledger that the gateway's benchmarks create: three bookies, a password, one own key."""

from bookgate.ledger.metadata import DigestType, LedgerMetadata

SAMPLE = LedgerMetadata.new(
    ["10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"],
    3,
    2,
    digest_type=DigestType.CRC32C,
    password=b"secret",
    custom_metadata={"application": b"bench"},
)
LAST_ENTRY_ID, LENGTH = 999, 100_000
"""Where it is closed."""
