"""The contents of a bookie's files, as plain rows for a printer or a program.

Each reader goes through its file once, in bounded memory, yields its contents, and has its findings ready at the end:
where the data ends and why, and contradictions. A damaged file is reported up to the damage; reading never raises for
the contents of a file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bookgate.bookie.entry_logs import format as entry_log_format
from bookgate.bookie.entry_logs.log_file import LogScan, read_ledgers_map
from bookgate.bookie.entry_logs.reader import EntryLogReader
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.journal.format import (
    EXPLICIT_LAC,
    FENCE,
    LEDGER_KEY,
    MADE_ANEW,
    TERM,
    TRUNCATE,
    JournalRecord,
    JournalScan,
)
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.bookie.tools.inspection.places import FILES, ReadableIndex, log_id_of
from bookgate.ledger.entry import (
    HEADER_SIZE,
    SCOPED_HEADER_SIZE,
    decode_header,
    decode_lac_header,
    is_scoped_packet,
)
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.ledger_id import MAX_UNSCOPED, LedgerId, ledger_name

_KINDS = {LEDGER_KEY: "key", FENCE: "fence", EXPLICIT_LAC: "lac", MADE_ANEW: "anew"} | {
    TERM: "term",
    TRUNCATE: "truncate",
}
_MAX_PROBLEMS = 20

Row = dict[str, object]


@dataclass
class Filter:
    """The wanted records; None for all."""

    ledger: int | None = None
    entry: int | None = None

    def takes(self, ledger_id: int, entry_id: int) -> bool:
        return self.ledger in (None, ledger_id) and self.entry in (None, entry_id)


@dataclass
class Findings:
    """The findings about a file after it has been read: facts in order, and problems."""

    facts: Row = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    more_problems: int = 0

    def problem(self, text: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)
        else:
            self.more_problems += 1


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = FILES.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        FILES.close(fd)


def shown(number: int) -> int | str:
    """A ledger in a row: the id of a ledger without scope, else the qualified name."""
    return number if number <= MAX_UNSCOPED else ledger_name(number)


def packet_fields(packet: bytes, with_payload: bool) -> Row:
    """Size, LAC and length of an entry; `payload` is the rest: the digest, then the payload bytes."""
    row: Row = {"bytes": len(packet)}
    size = SCOPED_HEADER_SIZE if packet and is_scoped_packet(packet) else HEADER_SIZE
    if len(packet) >= size:
        with suppress(DigestMatchException):
            _, _, row["lac"], row["length"] = decode_header(packet)
    if with_payload:
        row["payload"] = packet[size:]
    return row


def _lac_of(packet: bytes) -> int | None:
    """The LAC in an explicit LAC packet; None if the packet is invalid."""
    try:
        return decode_lac_header(packet)[1]
    except (ValueError, struct.error):
        return None


class JournalContents:
    """One journal file. Iterate for its records; `findings` is complete at the end."""

    def __init__(self, path: Path, wanted: Filter, *, with_payload: bool = False) -> None:
        self._path = path
        self._wanted = wanted
        self._with_payload = with_payload
        self.findings = Findings({"file": str(path)})

    def __iter__(self) -> Iterator[Row]:
        with opened(self._path) as fd:
            try:
                yield from self._records(fd)
            except StorageCorruptException as error:
                self.findings.problem(str(error))

    def _records(self, fd: int) -> Iterator[Row]:
        facts = self.findings.facts
        size = FILES.size(fd)
        version, header_size = journal_format.decode_header(FILES.pread(fd, 8, 0), str(self._path))
        facts.update(version=version, size=size, records=0)
        scan = JournalScan(lambda n, offset: FILES.pread(fd, n, offset), size, header_size, version, str(self._path))
        for records, record in enumerate(scan, 1):
            facts["records"] = records
            if self._wanted.takes(record.ledger_id, record.entry_id):
                yield self._row(record)
        facts["data_ends"] = scan.end
        facts["tail"] = _tail_of(fd, scan.end, size)

    def _row(self, record: journal_format.JournalRecord) -> Row:
        row: Row = {
            "offset": record.offset,
            "kind": "entry",
            "ledger": shown(record.ledger_id),
            "entry": record.entry_id,
        }
        if record.entry_id >= 0:
            return row | packet_fields(record.payload, self._with_payload)
        row |= {"kind": _KINDS.get(record.entry_id, "unknown"), "bytes": len(record.payload)}
        if record.entry_id not in _KINDS:
            return row
        del row["entry"]
        try:
            return row | _meta_of(record)
        except ValueError as error:
            self.findings.problem(f"record at offset {record.offset}: {error}")
            return row


def _meta_of(record: JournalRecord) -> Row:
    """What a meta record of a known kind says. Raises ValueError when it is not in its form."""
    match record.entry_id:
        case fmt if fmt in (FENCE, MADE_ANEW):
            return {}
        case fmt if fmt == TERM:
            return dict(journal_format.decode_term(record.payload)._asdict())
        case fmt if fmt == TRUNCATE:
            return {"last_entry": journal_format.decode_truncate(record.payload)}
    blob = journal_format.meta_blob(record.payload)
    return {"key": blob.hex()} if record.entry_id == LEDGER_KEY else {"lac": _lac_of(blob)}


def _tail_of(fd: int, end: int, size: int) -> str:
    """Why the scan of a journal ended at this position."""
    field_ = FILES.pread(fd, 4, end)
    if len(field_) < 4:
        return "end of the file"
    length = struct.unpack(">i", field_)[0]
    if length == 0:
        return f"zeros, {size - end} bytes made ready for records"
    if length > size - end - 4:
        return f"torn: a record of {length} bytes begins, the file has {size - end - 4} more"
    return f"torn: a record of {length} bytes of which not all blocks were written"


class LogFileContents:
    """One entry log. Iterate for its records; `findings` is complete at the end, and compares map and records."""

    def __init__(self, path: Path, wanted: Filter, *, with_payload: bool = False) -> None:
        self._path = path
        self._wanted = wanted
        self._with_payload = with_payload
        self.bytes_by_ledger: dict[int, int] = {}
        self.findings = Findings({"file": str(path)})

    def __iter__(self) -> Iterator[Row]:
        log_id = log_id_of(self._path.name) or 0
        facts = self.findings.facts
        with opened(self._path) as fd:
            header = FILES.pread(fd, entry_log_format.HEADER_SIZE, 0)
            self._check_header(header)
            facts.update(log=f"{log_id:x}", size=FILES.size(fd), records=0)
            try:
                for record in LogScan(FILES, fd, log_id, str(self._path)):
                    facts["records"] = int(str(facts["records"])) + 1
                    taken = len(record.packet) + 4
                    self.bytes_by_ledger[record.ledger_id] = self.bytes_by_ledger.get(record.ledger_id, 0) + taken
                    if self._wanted.takes(record.ledger_id, record.entry_id):
                        offset = entry_log_format.split_location(record.location)[1]
                        row: Row = {"offset": offset, "ledger": shown(record.ledger_id), "entry": record.entry_id}
                        yield row | packet_fields(record.packet, self._with_payload)
            except StorageCorruptException as error:
                self.findings.problem(str(error))
            facts["ledgers"] = len(self.bytes_by_ledger)
            facts["map"] = self._compare_map(header, read_ledgers_map(FILES, fd))

    def _check_header(self, header: bytes) -> None:
        if not header:
            self.findings.facts["header"] = "none: the log was made ready, or its process killed, before a write"
        elif len(header) < entry_log_format.HEADER_SIZE:
            self.findings.problem(f"the header has {len(header)} of {entry_log_format.HEADER_SIZE} bytes")
        elif header[:4] != entry_log_format.MAGIC:
            self.findings.problem(f"begins with {header[:4]!r}, which is no entry log's header")

    def _compare_map(self, header: bytes, ledgers_map: dict[int, int] | None) -> str:
        announced = entry_log_format.decode_map_fields(header)
        if announced is None:
            return "none: the log was not rotated"
        if ledgers_map is None:
            self.findings.problem(f"the map at offset {announced[0]}, of {announced[1]} ledgers, can't be read")
            return "damaged"
        if ledgers_map == self.bytes_by_ledger:
            return f"at offset {announced[0]}, agrees with the records"
        for ledger_id in sorted(ledgers_map.keys() | self.bytes_by_ledger.keys()):
            mapped, found = ledgers_map.get(ledger_id, 0), self.bytes_by_ledger.get(ledger_id, 0)
            if mapped != found:
                self.findings.problem(
                    f"ledger {ledger_name(ledger_id)}: the map says {mapped} bytes, the records have {found}"
                )
        return f"at offset {announced[0]}, differs from the records"


def bytes_in_log(path: Path) -> dict[int, int]:
    """Bytes by ledger in an entry log: by its map, or where it has none by its records."""
    with opened(path) as fd:
        found = read_ledgers_map(FILES, fd)
    if found is not None:
        return found
    contents = LogFileContents(path, Filter())
    for _ in contents:
        pass
    return contents.bytes_by_ledger


class LedgerContents:
    """One ledger in an index. Iterate for its entries' locations; `findings` is complete at the end.

    With `logs` (directories) every location is checked: the record there must be complete and belong to that entry.
    """

    def __init__(
        self,
        index: ReadableIndex,
        number: int,
        logs: Sequence[Path],
        wanted: Filter,
        *,
        with_payload: bool = False,
    ) -> None:
        self._index = index
        self._id = LedgerId.of_number(number)
        self._logs = logs
        self._wanted = wanted
        self._with_payload = with_payload
        self.findings = Findings({"ledger": shown(number)})

    def header(self) -> bool:
        """Reads the header into the findings; False when the index does not know the ledger."""
        try:
            found = self._index.read_header(self._id)
        except StorageCorruptException as error:
            self.findings.problem(str(error))
            return True
        if found is None:
            return False
        header, last_entry_id = found
        facts = self.findings.facts
        if header is None:
            self.findings.problem("the header was never written; the journal must have the ledger's key")
        else:
            lac = header.explicit_lac
            facts.update(key=header.master_key.hex(), fenced=header.fenced)
            if header.terms is not None:
                facts.update(term=header.terms.term, last_add_confirmed=header.terms.known_lac)
                facts["last_add_fully_replicated"] = header.terms.lafr
            facts["explicit_lac"] = _lac_of(lac) if lac else None
        facts["last_entry"] = last_entry_id
        return True

    def __iter__(self) -> Iterator[Row]:
        reader = EntryLogReader(FILES, self._logs, 16) if self._logs else None
        entries = missing = unreadable = 0
        following = 0
        try:
            for entry_id in self._index.entry_ids(self._id):
                entries += 1
                missing += entry_id - following
                following = entry_id + 1
                location = self._index.location(self._id, entry_id)
                log_id, offset = entry_log_format.split_location(location)
                row: Row = {"entry": entry_id, "log": f"{log_id:x}", "offset": offset}
                if reader is not None:
                    readable = self._look_up(reader, location, entry_id, row)
                    unreadable += not readable
                if self._wanted.takes(self._id.number, entry_id):
                    yield row
        except StorageCorruptException as error:
            self.findings.problem(str(error))
        finally:
            if reader is not None:
                reader.close()
        self.findings.facts.update(entries=entries, missing_before_last=missing)
        if reader is not None:
            self.findings.facts["unreadable"] = unreadable
        if unreadable:
            self.findings.facts["note"] = "a kill leaves slots that lead behind a log's end; a start mends them"

    def _look_up(self, reader: EntryLogReader, location: int, entry_id: int, row: Row) -> bool:
        try:
            packet = reader.read(location, self._id.number, entry_id)
        except OSError as error:
            self.findings.problem(str(error))
            return False
        row.update(packet_fields(packet, self._with_payload))
        return True
