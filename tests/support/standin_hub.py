"""A hub on loopback that speaks the protocol of huggingface.co as far as downloads go.

Two servers, as in life: the hub answers HEAD and redirects a GET to a CDN of another host name
(127.0.0.1 and localhost), which knows ranges, and whose ETag is not the sha256. What goes wrong
is set per file in `faults`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The flagship's target and draft, as the fixture `hub` serves them.
REPO, TARGET = "Qwen/Qwen2-7B-Instruct-GGUF", "qwen2-7b-instruct-q4_k_m.gguf"
SMALL, DRAFT = "Qwen/Qwen2-0.5B-Instruct-GGUF", "qwen2-0_5b-instruct-q4_k_m.gguf"
_SMALL_BYTES = 4096  # below it a file is no LFS file: etag is the git blob id, no redirect
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Served:
    """A file of a repository."""

    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_large(self) -> bool:
        return len(self.content) > _SMALL_BYTES

    @property
    def etag(self) -> str:
        if self.is_large:
            return self.sha256
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    def listed(self, name: str) -> dict[str, Any]:
        """Its entry in the list of a repository's files."""
        size = len(self.content)
        lfs = {"lfs": {"sha256": self.sha256, "size": size, "pointerSize": 135}}
        entry = {"rfilename": name, "size": size, "blobId": "0" * 40}
        return entry | lfs if self.is_large else entry


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one GET of a file at the CDN (or, with on_head, to one HEAD).

    at_hub: to the GET at the hub, before it leads to the CDN, or to a call of the API, where
    the fault belongs to the repository. redirect: the hub leads there instead. status: answer
    this instead. headers: go with that, or with the content. cut_after: close the connection
    after so many bytes of the body. stall_after: send no more after so many, until closed. Both
    at the hub: nothing. content: send this instead, at the hub also with a status.
    ignore_range: answer 200 and all.
    """

    on_head: bool = False
    at_hub: bool = False
    redirect: str | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    stall_after: int | None = None
    content: bytes | None = None
    ignore_range: bool = False


@dataclass(frozen=True)
class Seen:
    """A request as it arrived. server: "hub" or "cdn"."""

    server: str
    method: str
    path: str
    range: str | None
    token: str | None


class StandinHub:
    """The two servers and what they serve."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], Served] = {}
        self.revisions = {"main": COMMIT}  # branches and tags, each with its commit
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.seen: list[Seen] = []
        self.num_replied = 0  # bytes that clients took, but for those of files at the CDN
        self.num_sent: dict[str, int] = defaultdict(int)  # bytes of bodies, by file
        self.token: str | None = None  # if set, requests without it get 401
        self.environment: dict[str, str] = {}  # with which another process uses this hub
        self.closing = threading.Event()
        self._servers = [_serve(_HubHandler, self), _serve(_CdnHandler, self)]
        hub, cdn = (server.server_address[1] for server in self._servers)
        self.endpoint, self.cdn = f"http://127.0.0.1:{hub}", f"http://localhost:{cdn}"

    def add(self, repo: str, file: str, content: bytes) -> Served:
        self.files[repo, file] = Served(content)
        return self.files[repo, file]

    def gets(self, file: str) -> list[Seen]:
        """The GETs of a file that reached its content."""
        at_cdn = [one for one in self.seen if (one.method, one.server) == ("GET", "cdn")]
        return [one for one in at_cdn if one.path.endswith(file)]

    def close(self) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: StandinHub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what these tests are about."""


def _serve(handler: type[BaseHTTPRequestHandler], hub: StandinHub) -> _Server:
    server = _Server(("127.0.0.1", 0), handler)
    server.hub = hub
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kind = ""
    server: _Server

    @property
    def hub(self) -> StandinHub:
        return self.server.hub

    def log_message(self, format: str, *args: Any) -> None:
        """Kept in `seen` instead."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked, token = self.headers.get("Range"), self.headers.get("Authorization")
        self.hub.seen.append(Seen(self.kind, self.command, path, asked, token))
        self.answer(path)

    do_HEAD = do_GET

    def answer(self, path: str) -> None:
        raise NotImplementedError

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for begin in range(0, len(body), _PIECE_BYTES):
                piece = body[begin : begin + _PIECE_BYTES]
                self.wfile.write(piece)
                self.hub.num_replied += len(piece)

    def next_fault(self, key: str, *, on_head: bool = False, at_hub: bool = False) -> Fault:
        """The next fault of a file, or of a repository; one without effect if there is none."""
        waiting = self.hub.faults[key]
        for fault in waiting:
            if (fault.on_head, fault.at_hub) == (on_head, at_hub):
                waiting.remove(fault)
                return fault
        return Fault()

    def played(self, fault: Fault, commit: str = COMMIT) -> bool:
        """Answer at the hub as the fault has it; whether it does."""
        if fault.stall_after is not None:
            self.stall()
        elif fault.cut_after is not None:
            self.close_connection = True
        elif fault.redirect is not None:
            self.reply(302, {"Location": fault.redirect, "X-Repo-Commit": commit})
        elif fault.status or fault.content is not None:
            self.reply(fault.status or 200, fault.headers, fault.content or b"")
        else:
            return False
        return True

    def stall(self) -> None:
        """Say nothing until the hub is closed, and then hang up."""
        self.hub.closing.wait(60)
        self.close_connection = True


class _HubHandler(_Handler):
    kind = "hub"

    def answer(self, path: str) -> None:
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self.reply(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/.*)?", path):
            self._list(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/[^/]+/(.+)", path):
            served = self.hub.files[found[1], found[2]]
            headers = {"ETag": f'"{served.etag}"', "X-Repo-Commit": COMMIT}
            self.reply(200, headers, served.content)
        else:
            self.reply(404, {"X-Error-Code": "RepoNotFound"})

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        served = self.hub.files.get((repo, file))
        commit = self.hub.revisions.get(revision, revision)
        if not any(repo == known for known, _ in self.hub.files):
            return self.reply(404, {"X-Error-Code": "RepoNotFound"})
        if commit not in self.hub.revisions.values():
            return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        if served is None:
            return self.reply(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        on_head = self.command == "HEAD"
        name = file.rsplit("/", 1)[-1]
        if self.played(self.next_fault(name, on_head=on_head, at_hub=not on_head), commit):
            return None
        about = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{served.etag}"'}
        if not served.is_large:
            there = f"/api/resolve-cache/models/{repo}/{commit}/{file}"
            return self.reply(307, {**about, "Location": there})
        size = str(len(served.content))
        there = f"{self.hub.cdn}/{repo}/{file}?signature=secret"
        return self.reply(302, {**about, "Location": there, "X-Linked-Size": size})

    def _list(self, repo: str) -> None:
        files = {name: s for (owner, name), s in self.hub.files.items() if owner == repo}
        if not files:
            return self.reply(404, {"X-Error-Code": "RepoNotFound"})
        if self.played(self.next_fault(repo, at_hub=True)):
            return None
        siblings = [served.listed(name) for name, served in files.items()]
        answer = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": []}
        body = json.dumps(answer).encode()
        return self.reply(200, {"Content-Type": "application/json"}, body)


class _CdnHandler(_Handler):
    kind = "cdn"

    def answer(self, path: str) -> None:
        _, owner, repo, file = path.split("/", 3)
        if self.command == "HEAD" or "Authorization" in self.headers:
            return self.reply(500, {"X-Error-Message": "a token, or a HEAD, at the CDN"})
        name = file.rsplit("/", 1)[-1]
        fault = self.next_fault(name)
        if fault.status:
            return self.reply(fault.status, fault.headers)
        content = fault.content or self.hub.files[f"{owner}/{repo}", file].content
        return self._send(name, content, fault)

    def _send(self, name: str, content: bytes, fault: Fault) -> None:
        begin, end, size = 0, len(content), len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {"ETag": '"a-hash-of-another-kind"', "Accept-Ranges": "bytes"}
        if asked and not fault.ignore_range:
            begin, end = int(asked[1]), min(size, int(asked[2] or size - 1) + 1)
            if begin >= size:
                return self.reply(416, {"Content-Range": f"bytes */{size}"})
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        self.send_response(206 if "Content-Range" in headers else 200)
        headers["Content-Length"] = str(end - begin)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        limits = [limit for limit in (fault.cut_after, fault.stall_after) if limit is not None]
        body = content[begin : min([end, *(begin + limit for limit in limits)])]
        for at in range(0, len(body), _PIECE_BYTES):
            piece = body[at : at + _PIECE_BYTES]
            self.wfile.write(piece)
            self.hub.num_sent[name] += len(piece)
        if fault.stall_after is not None:
            self.stall()
        if limits:
            self.close_connection = True
        return None


@contextlib.contextmanager
def standin_hub() -> Iterator[StandinHub]:
    """A running hub, closed at the end."""
    hub = StandinHub()
    try:
        yield hub
    finally:
        hub.close()
