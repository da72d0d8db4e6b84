"""Decodes payloads in a process of its own, one for a request.

Schemas and payloads are whatever a browser sends and writers have appended. Some of them end the process that decodes
them, or keep it busy, or decode to far more than they are; the bookie does not share its process with that. How the
child limits itself: `decoding_child`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal

from bookgate.bookie.http import decoding_child
from bookgate.bookie.http.payload_decoding import DecodingException
from bookgate.runtime.child_process import own_environment, python_command

_SECONDS = 10.0
_LARGEST_ANSWER = 8 * 1024 * 1024
_CHUNK = 256 * 1024


async def decoded_apart(order: bytes) -> bytes:
    """The child's answer to an order (`decoding_child.answer_to`).

    Raises DecodingException for what ends the child, takes it too long, or decodes to too much.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *python_command(decoding_child.__name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # An uncaught error may quote what applications wrote, which belongs in no log.
            stderr=asyncio.subprocess.DEVNULL,
            env=own_environment(),
        )
    except OSError as error:
        raise DecodingException(f"no process to decode in could be started: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(_SECONDS):
            return await _answer(process, order)
    except TimeoutError:
        raise DecodingException(_TOO_LONG) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


_TOO_LONG = f"decoding took longer than {_SECONDS:.0f} s, and was given up"


async def _answer(process: asyncio.subprocess.Process, order: bytes) -> bytes:
    """Raises DecodingException."""
    assert process.stdin is not None
    assert process.stdout is not None
    # It may end before it has read all.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(order)
        await process.stdin.drain()
    process.stdin.close()
    answer = bytearray()
    while chunk := await process.stdout.read(_CHUNK):
        answer += chunk
        if len(answer) > _LARGEST_ANSWER:
            raise DecodingException(f"these payloads decode to more than {_LARGEST_ANSWER >> 20} MiB of JSON")
    code = await process.wait()
    if code == -signal.SIGXCPU:
        raise DecodingException(_TOO_LONG)
    if code != 0:
        raise DecodingException(
            f"these payloads ended the process that decoded them (exit code {code}): by this schema, or the one that "
            "they bring, they nest too deeply or take too much memory"
        )
    return bytes(answer)
