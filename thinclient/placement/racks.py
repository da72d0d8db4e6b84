"""The places of bookies: their racks, from a mapping file, else from a bookie's registration.

The file is TOML. In the table `racks`, the key is a bookie id, host or address, the value a rack:

    [racks]
    "bookie-1:3181" = "/room1/rack1"
    "10.0.0.7" = "/room1/rack2"

It is reloaded when it changes. A bookie that is not in the file has the rack in its service info property `rack`, if
any.

A bookie's host is its property `host`, else the host of its entry port.
"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

from bookgate.ledger.bookie_info import BOOKIE_RPC, HOST_PROPERTY, BookieServiceInfo
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.file_marks import FileMark, mark_of
from bookgate.runtime.logs import log_event
from bookgate.thinclient.core.placement import DEFAULT_RACK
from bookgate.thinclient.core.spread import Place

_log = logging.getLogger(__name__)

RACK_PROPERTY = "rack"


class RackMapping:
    """Racks and hosts by bookie, including bookies that are no longer registered."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises IncorrectParameterException for a file that can't be read or has no such table."""
        self._file = file
        self._mark: FileMark | None = None
        self._racks: dict[str, str] = {}
        self._seen: dict[str, Place] = {}
        if file is not None:
            self._racks, self._mark = _read(file)

    def place(self, info: BookieServiceInfo) -> Place:
        """The bookie's rack (`DEFAULT_RACK` if neither source has one) and its host (its id if there is none)."""
        place = self._seen[info.bookie_id] = self._place_by(info)
        return place

    def _place_by(self, info: BookieServiceInfo) -> Place:
        endpoint = info.endpoint(BOOKIE_RPC)
        rack = self._mapped(info) or info.properties.get(RACK_PROPERTY) or DEFAULT_RACK
        host = info.properties.get(HOST_PROPERTY) or (endpoint.host if endpoint else info.bookie_id)
        return Place(rack, host)

    def _mapped(self, info: BookieServiceInfo) -> str | None:
        endpoint = info.endpoint(BOOKIE_RPC)
        names = [info.bookie_id] if endpoint is None else [info.bookie_id, endpoint.address, endpoint.host]
        names.append(info.bookie_id.rpartition(":")[0])
        return next((self._racks[name] for name in names if name in self._racks), None)

    def place_of(self, bookie_id: str) -> Place:
        """The last known place of a bookie, whether it is registered or not."""
        return self._seen.get(bookie_id) or self._place_by(BookieServiceInfo.legacy(bookie_id))

    def knows(self, bookie_id: str) -> bool:
        """Whether the file, or a registration seen so far, says where the bookie is."""
        return bookie_id in self._seen or self._mapped(BookieServiceInfo.legacy(bookie_id)) is not None

    @property
    def has_hosts(self) -> bool:
        """Whether the bookies seen so far are on more than one host."""
        places = iter(self._seen.values())
        first = next(places, None)
        return any(place != first for place in places)

    def refresh(self) -> None:
        """Reloads the file if it changed. If it can't be read, the racks stay unchanged."""
        if self._file is None:
            return
        try:
            if mark_of(self._file) != self._mark:
                self._racks, self._mark = _read(self._file)
                self._seen.clear()
        except (OSError, IncorrectParameterException) as error:
            log_event(_log, "rack_mapping", logging.WARNING, state="unreadable", file=self._file, error=error)


def _read(file: Path) -> tuple[dict[str, str], FileMark]:
    try:
        mark = mark_of(file)
        racks = tomllib.loads(file.read_text(encoding="utf-8"))["racks"]
    except (OSError, ValueError, KeyError) as error:
        raise IncorrectParameterException(f"rack mapping {file} can't be read: {error!r}") from error
    if not isinstance(racks, dict):
        raise IncorrectParameterException(
            f"rack mapping {file}: racks must be a table of texts. Write [racks], and below it for each bookie a "
            'line like "bookie-1:3181" = "/room1/rack1"'
        )
    wrong = [name for name, rack in racks.items() if not (isinstance(rack, str) and rack.startswith("/"))]
    if wrong:
        raise IncorrectParameterException(
            f'rack mapping {file}: the rack of {", ".join(wrong)} must be a string that begins with "/"'
        )
    return racks, mark
