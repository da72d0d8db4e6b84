"""The process that decodes payloads for one request (`decoding_process`): the request on standard input, the answer on
standard output, both JSON.

It limits itself before it reads anything: a few bytes decode to any amount of memory and time, and libraries in C
recurse without a bound. It imports no more than decoding needs, as each request starts one.
"""

from __future__ import annotations

import base64
import json
import resource
import sys
from collections.abc import Mapping
from typing import Any

from bookgate.bookie.http.payload_decoding import Decoder, DecodingException, avro_decoder, protobuf_decoder

_MEMORY_BYTES = 256 * 1024 * 1024
_CPU_SECONDS = 10
_LIMITS = {
    resource.RLIMIT_AS: _MEMORY_BYTES,
    resource.RLIMIT_CPU: _CPU_SECONDS,
    # A crash leaves no file with what applications wrote.
    resource.RLIMIT_CORE: 0,
}


def main() -> None:
    for kind, most in _LIMITS.items():
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))
    sys.stdout.write(answer_to(json.load(sys.stdin.buffer)))


def answer_to(order: Mapping[str, Any]) -> str:
    """What is answered, as JSON: by payload its value or its problem, or what is wrong with the schema."""
    try:
        decoder = _decoder_of(order)
    except DecodingException as error:
        return json.dumps({"decoded": [], "problem": str(error)})
    decoded = (_one(decoder, text, order["skip"]) for text in order["payloads"])
    return f'{{"decoded": [{",".join(decoded)}], "problem": null}}'


def _decoder_of(order: Mapping[str, Any]) -> Decoder:
    """Raises DecodingException."""
    if order["format"] == "avro":
        return avro_decoder(order["schema"])
    return protobuf_decoder(order["schema"], order["message"])


def _one(decoder: Decoder, text: str, skip: int) -> str:
    try:
        return json.dumps({"value": decoder(base64.b64decode(text, validate=True)[skip:])}, allow_nan=False)
    except (RecursionError, MemoryError) as error:
        too = "is nested too deeply" if isinstance(error, RecursionError) else "takes too much memory"
        return json.dumps({"problem": f"what it decodes to {too}"})
    except (DecodingException, ValueError) as error:
        return json.dumps({"problem": str(error)})


if __name__ == "__main__":
    main()
