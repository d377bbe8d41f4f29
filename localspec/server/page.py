"""The page that a person sees who opens the server's address in a browser."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from localspec.server.encoding import json_response

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
mimetypes.add_type("text/javascript", ".js")  # whatever the system says
mimetypes.add_type("image/svg+xml", ".svg")


class _PageFiles(StaticFiles):
    def file_response(self, *arguments: Any, **keywords: Any) -> Response:
        response = super().file_response(*arguments, **keywords)
        response.headers.update(_HEADERS)
        return response


page_files = GZipMiddleware(_PageFiles(directory=_FOLDER))


async def root(request: Request) -> Response:
    """The page for a browser; for programs, which look for a server there, its health."""
    if "text/html" in request.headers.get("accept", ""):
        return FileResponse(_FOLDER / "index.html", headers=_HEADERS)
    return json_response({"status": "ok"}, headers={"vary": "accept"})
