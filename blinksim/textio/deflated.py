"""Deflated data in base64, as fields of JSON: written, and read with a limit on what it unpacks to."""

from __future__ import annotations

import base64
import binascii
import zlib

from blinksim.textio.strict_json import Entry

_MOST_TEXT = 2**26


def deflated(data: bytes) -> str:
    """The data, deflated (RFC 1950), in base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def inflated(entry: Entry, most: int) -> bytes:
    """The data of such a field; raises `FileError` for what is none, or unpacks to more than `most` bytes."""
    try:
        data = base64.b64decode(entry.text(_MOST_TEXT), validate=True)
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, most + 1)
    except (binascii.Error, ValueError, zlib.error):
        raise entry.wrong("is not deflated data in base64") from None
    if len(plain) > most or not unpacker.eof:
        raise entry.wrong(f"does not unpack to at most {most} bytes")
    return plain
