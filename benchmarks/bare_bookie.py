"""What a machine allows a bookie in Python to do: receive frames, append them to a file, sync it, answer.

No parsing beyond the frame length, no ledgers, no cache, no index: the least that is still durable. Arguments: a
directory for the file, then perhaps `nosync` (written, not synced) or a number of bytes: then nothing is written, and
each request gets an answer of that size, as a bookie that serves reads from memory could give. Prints its port, serves
until its standard input ends.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from pathlib import Path

_LENGTH = struct.Struct(">I")
_ANSWER = bytes.fromhex("000000130a060803100218011000aa0606080010071803")


def _answer_of(size: int) -> bytes:
    return _LENGTH.pack(size) + bytes(size)


def _serve(connection: socket.socket, file: int, answer: bytes, sync: bool) -> None:
    rest = b""
    while data := connection.recv(1 << 18):
        data = rest + data
        position = answers = 0
        while len(data) - position >= 4:
            end = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            position = end
            answers += 1
        rest = data[position:]
        if answers:
            if file >= 0:
                os.write(file, memoryview(data)[:position])
            if file >= 0 and sync:
                os.fdatasync(file)
            connection.sendall(answer * answers)


def main() -> None:
    option = sys.argv[2] if len(sys.argv) > 2 else ""
    answer = _answer_of(int(option)) if option.isdigit() else _ANSWER
    path = Path(sys.argv[1]) / "bare.log"
    file = -1 if option.isdigit() else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sync = option != "nosync"
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, file, answer, sync), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    os.read(0, 1)


if __name__ == "__main__":
    main()
