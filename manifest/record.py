"""The frame that manifests and journals share: a preamble, then checksummed records.

    preamble  8 bytes magic, u16 format version, u16 least version of a reader (big endian)
    record    u32 length of the body, u32 crc32 of tag and body, u8 tag, body

A record with an unknown tag is skipped; what a reader must understand raises the least version instead.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec

from .errors import ManifestError

FORMAT = 1
"""Version that this code writes."""
READS = 1
"""Newest least-reader version that this code can read."""

MANIFEST_MAGIC = b"\x89JRM\r\n\x1a\n"
JOURNAL_MAGIC = b"\x89JRJ\r\n\x1a\n"

_PREAMBLE = struct.Struct(">8sHH")
_FRAME = struct.Struct(">IIc")
PREAMBLE_SIZE = _PREAMBLE.size

MAX_FILE = 1 << 30
"""Bytes of one file."""
MAX_BODY = 64 << 20
"""Bytes of one record's body."""
MAX_INFLATED = 256 << 20
"""Bytes of all bodies of one file once decompressed."""
MAX_ITEMS = 1 << 22
"""Elements of one array or map."""
MAX_TEXT = 1 << 20
"""Bytes of one string or byte string."""


def preamble(magic: bytes) -> bytes:
    """Return the first bytes of a file of this format."""
    return _PREAMBLE.pack(magic, FORMAT, 1)


def frame(tag: bytes, body: bytes) -> bytes:
    """Return one record, ready to be appended."""
    return _FRAME.pack(len(body), zlib.crc32(body, zlib.crc32(tag)), tag) + body


def read_file(path: str | os.PathLike[str], magic: bytes) -> bytes:
    """Return the content of a file. One that does not begin with `magic` is read no further than that.

    Raises ManifestError when it cannot be read, or is past the limit.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(len(magic))
            if data == magic:
                data += file.read(MAX_FILE)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise ManifestError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_FILE:
        raise ManifestError(f"is larger than {MAX_FILE} bytes")
    return data


def check_preamble(data: bytes, magic: bytes, what: str) -> None:
    """Raise ManifestError unless `data` begins as a file of this kind that this code can read."""
    if len(data) < PREAMBLE_SIZE:
        if data and magic.startswith(data[: len(magic)]):
            raise ManifestError(f"{what} is cut: {len(data)} bytes, its preamble alone has {PREAMBLE_SIZE}")
        raise ManifestError(
            f"not a jitreplay {what}: it begins with {data[:8]!r}, expected {magic!r}"
            if data
            else f"not a jitreplay {what}: it is empty"
        )
    found, version, least = _PREAMBLE.unpack_from(data)
    if found != magic:
        raise ManifestError(f"not a jitreplay {what}: it begins with {found!r}, expected {magic!r}")
    if least > READS:
        raise ManifestError(
            f"{what} has format {version} and needs a reader of format {least} or newer; "
            f"this jitreplay reads up to {READS}: upgrade jitreplay"
        )


def frames(data: bytes, what: str) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield (tag, body, offset of the record's end) of each record; raise ManifestError at the first bad one."""
    at = PREAMBLE_SIZE
    while at < len(data):
        if at + _FRAME.size > len(data):
            raise ManifestError(f"{what} is cut at byte {len(data)}, inside a record's head")
        length, crc, tag = _FRAME.unpack_from(data, at)
        if length > MAX_BODY:
            raise ManifestError(f"{what} is damaged: a record at byte {at} claims {length} bytes (limit {MAX_BODY})")
        end = at + _FRAME.size + length
        if end > len(data):
            raise ManifestError(f"{what} is cut at byte {len(data)}, inside a record that ends at {end}")
        body = data[at + _FRAME.size : end]
        if zlib.crc32(body, zlib.crc32(tag)) != crc:
            raise ManifestError(f"{what} is damaged: the record at byte {at} does not match its checksum")
        yield tag, body, end
        at = end


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def pack(value: Any) -> bytes:
    """Return builtins or structs as msgpack, each number and length in its shortest form, the keys of maps in order.

    Strings are UTF-8 that may hold lone surrogates, as Python's may; msgspec writes the rest, many times as fast.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(bytes,), order="deterministic")
        return bytes(msgpack.packb(plain, use_bin_type=True, unicode_errors="surrogatepass") or b"")


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a map has the same key twice")
    return found


def unpack(body: bytes, what: str) -> Any:
    """Return the builtins in `body`; raise ManifestError past a limit or on malformed data."""
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            use_list=True,
            strict_map_key=True,
            unicode_errors="surrogatepass",
            object_pairs_hook=_unique,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_str_len=MAX_TEXT,
            max_bin_len=MAX_TEXT,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ManifestError(f"{what} is damaged: {type(error).__name__}: {error}") from None


def deflate(body: bytes) -> bytes:
    return zlib.compress(body, 6)


def inflate(body: bytes, what: str, room: int = MAX_INFLATED) -> bytes:
    """Return the decompressed body; raise ManifestError when it is malformed or larger than `room` bytes."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, room + 1)
    except zlib.error as error:
        raise ManifestError(f"{what} is damaged: {error}") from None
    if len(data) > room:
        raise ManifestError(f"{what} is damaged: it decompresses to more than {MAX_INFLATED} bytes")
    if not stream.eof or stream.unused_data:
        raise ManifestError(f"{what} is damaged: a block is cut, or bytes follow it")
    return data
