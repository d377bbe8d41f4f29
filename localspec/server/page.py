"""The page that a person sees who opens the server's address in a browser."""

from __future__ import annotations

import functools
import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from localspec.server.encoding import json_response
from localspec.server.refusal import RequestError

_FOLDER = Path(__file__).parent / "page"
# Nothing is loaded from elsewhere, no code or style stands in the page, and no text of a model
# becomes HTML but by DOMPurify.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # asked again by its etag: a new version is seen at once
    "vary": "accept, accept-encoding",
}
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}  # whatever the system says


class _File(NamedTuple):
    content: bytes
    packed: bytes  # by gzip
    etag: str
    media_type: str


async def root(request: Request) -> Response:
    """The page for a browser; for programs, which look for a server there, its health."""
    if "text/html" in request.headers.get("accept", ""):
        return _response(request, "index.html")
    return json_response({"status": "ok"}, headers={"vary": "accept"})


async def page_file(request: Request) -> Response:
    """A file of the page. Raises RequestError for any other name."""
    return _response(request, request.path_params["name"])


def _response(request: Request, name: str) -> Response:
    if name not in _names():
        raise RequestError(
            f"the page has no file {name!r:.80}",
            "Open the server's address itself.",
            code="not_found",
        )
    file = _file(name)
    headers = {**_HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    content = file.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"], content = "gzip", file.packed
    return Response(content, headers=headers, media_type=file.media_type)


@functools.cache
def _names() -> frozenset[str]:
    """Paths of the files, with slashes; only these are ever read."""
    files = (each for each in _FOLDER.rglob("*") if each.is_file())
    return frozenset(each.relative_to(_FOLDER).as_posix() for each in files)


@functools.cache
def _file(name: str) -> _File:
    content = (_FOLDER / name).read_bytes()
    suffix = Path(name).suffix
    guessed = _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "text/plain")
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _File(content, gzip.compress(content, mtime=0), etag, guessed)
