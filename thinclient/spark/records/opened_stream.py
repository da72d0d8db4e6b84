"""Opens the streams that options of reads and writes name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookgate.thinclient.spark.records.record_options import RecordOptions, RecordWriteOptions

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper, Stream


def opened_stream(client: BookKeeper, options: RecordOptions | RecordWriteOptions, name: str) -> Stream:
    """One of the options' streams. Raises NoSuchLedgerExistsOnMetadataServerException."""
    # Late, as wherever the client is used: planning imports this module without one.
    from bookgate.thinclient.blocking.client import Streams

    return Streams(client, scope_id=options.scope_id).open(name, options.password)
