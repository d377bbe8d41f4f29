"""Decompresses the bodies of requests, up to a number of bytes."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

from localspec.server.refusal import RequestError

_PIECE = 1_000_000  # bytes that a decoder gives at a time
_ZSTD_WINDOW_BITS = 23  # 8 MB, as RFC 9659 has it: a decoder takes that much memory


class _Decoder(Protocol):
    """A decoder of zlib, or of zstd."""

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
        RequestError: the coding is not known here, the body is not in it, or it becomes too
            long. It is not decompressed any further then.
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
    pieces: list[bytes] = []
    num_read = 0
    left = body
    while not decoder.eof:
        piece = decoder.decompress(left, _PIECE)
        left = getattr(decoder, "unconsumed_tail", b"")  # a decoder of zstd keeps it itself
        if not (piece or left or decoder.eof):
            raise EOFError("it ends too early")
        num_read += len(piece)
        if num_read > most:
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
    """For each coding, the function that makes a decoder for a body."""
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
    """A decoder of zlib's format, or of bare deflate if a client left out zlib's header."""
    has_header = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
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
    """Python's module for zstd, from 3.14 on, or the package that has it for older versions."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _errors() -> tuple[type[Exception], ...]:
    """The errors of decoders and of `_decompress`."""
    zstd = _zstd()
    ours: tuple[type[Exception], ...] = (zlib.error, EOFError)
    if zstd is None:
        return ours
    return (*ours, zstd.ZstdError)
