"""Decompresses the bodies of requests, up to a number of bytes."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

from localspec.server.refusal import RequestError

_PIECE_BYTES = 1_000_000  # that a decoder returns at most in one call
# The binary logarithm of the largest window, which takes memory: 8 MB is RFC 9659's limit.
_ZSTD_WINDOW_BITS = 23


class _Decoder(Protocol):
    """A decoder of one compressed body, as zlib and zstd have it."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


def decompressed(body: bytes, coding: str, most: int) -> bytes:
    """The body without its compression.

    Args:
        body: the body as it was sent.
        coding: the request's header Content-Encoding; "" for none.
        most: the largest number of bytes without compression.

    Raises:
        RequestError: the coding is not supported, the body is not in that coding, or it has
            more than `most` bytes, after which decompression stops.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    makers = _makers()
    if name not in makers:
        known = ", ".join(sorted(makers.keys() - {"x-gzip"}))
        raise RequestError(
            f"the body is compressed with {coding!r:.80}",
            f"Send it without compression, or with one of: {known}.",
            code="unsupported_content_encoding",
            headers={"accept-encoding": known},
        )
    try:
        return _decompress(makers[name](body), body, most)
    except _errors() as error:
        raise RequestError(
            f"the body is not in {name}, which its Content-Encoding says: {error}",
            "Send the header that fits the body.",
        ) from error


def _decompress(decoder: _Decoder, body: bytes, most: int) -> bytes:
    """The body without its compression.

    Args:
        decoder: a new decoder for this body.
        body: the compressed body.
        most: the largest number of bytes without compression.

    Raises:
        RequestError: there would be more than `most` bytes.
        EOFError: the compressed body ends too early, or something follows its end.
        Exception: the decoder's own error, see `_errors`.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    unread = body
    while not decoder.eof:
        piece = decoder.decompress(unread, _PIECE_BYTES)
        # zlib's decoder gives back the input that it has not read yet; zstd's keeps it.
        unread = getattr(decoder, "unconsumed_tail", b"")
        if not (piece or unread or decoder.eof):
            raise EOFError("it ends too early")
        num_bytes += len(piece)
        if num_bytes > most:
            raise RequestError(
                f"the body has more than {most} bytes without its compression",
                "Send less.",
                code="request_too_large",
            )
        pieces.append(piece)
    if decoder.unused_data:
        raise EOFError("something follows its end")
    return b"".join(pieces)


def _makers() -> dict[str, Callable[[bytes], _Decoder]]:
    """The function that makes a decoder for a body, by the name of the coding."""
    makers: dict[str, Callable[[bytes], _Decoder]] = {
        "gzip": _gzip_decoder,
        "x-gzip": _gzip_decoder,
        "deflate": _deflate_decoder,
    }
    if _zstd() is not None:
        makers["zstd"] = _zstd_decoder
    return makers


def _gzip_decoder(_body: bytes) -> _Decoder:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _deflate_decoder(body: bytes) -> _Decoder:
    """A decoder of zlib's format, or of raw deflate if the client left out zlib's header.

    The header is two bytes (RFC 1950). The low half of the first one is 8, and the big-endian
    number that both form is a multiple of 31.
    """
    header = int.from_bytes(body[:2], "big")
    has_header = len(body) > 1 and body[0] % 16 == 8 and header % 31 == 0
    if has_header:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS)
    return zlib.decompressobj(wbits=-zlib.MAX_WBITS)


def _zstd_decoder(_body: bytes) -> _Decoder:
    zstd = _zstd()
    assert zstd is not None
    limits = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_BITS}
    decoder: _Decoder = zstd.ZstdDecompressor(options=limits)
    return decoder


@functools.cache
def _zstd() -> ModuleType | None:
    """The module for zstd: Python's (from 3.14 on), or its backport; None without either."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _errors() -> tuple[type[Exception], ...]:
    """The types of the errors that `_decompress` raises for a body that is damaged."""
    zstd = _zstd()
    errors: tuple[type[Exception], ...] = (zlib.error, EOFError)
    if zstd is None:
        return errors
    return (*errors, zstd.ZstdError)
