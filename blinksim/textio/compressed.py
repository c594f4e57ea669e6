"""Data compressed in the xz format, in base64, as fields of JSON: written, and read with a limit on its length."""

from __future__ import annotations

import base64
import binascii
import lzma

from blinksim.textio.strict_json import Entry

_MOST_TEXT = 2**26
# What unpacking may use: the dictionary of the strongest preset.
_MOST_MEMORY = 2**27
# Names and columns repeat from node to node: stronger presets are ten times slower here and find no more.
_PRESET = 2


def compressed(data: bytes) -> str:
    """The data, compressed (xz, LZMA2), in base64."""
    return base64.b64encode(lzma.compress(data, preset=_PRESET)).decode("ascii")


def decompressed(entry: Entry, most: int) -> bytes:
    """The data of such a field; raises `FileError` for what is none, or unpacks to more than `most` bytes."""
    try:
        data = base64.b64decode(entry.text(_MOST_TEXT), validate=True)
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY)
        plain = unpacker.decompress(data, most + 1)
    except (binascii.Error, ValueError, lzma.LZMAError):
        raise entry.wrong("is not xz data in base64") from None
    if len(plain) > most or not unpacker.eof:
        raise entry.wrong(f"does not unpack to at most {most} bytes")
    return plain
