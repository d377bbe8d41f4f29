"""The result of a call → text for a model, and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.tools.foreign import ForeignResult

_EMPTY = "[The tool returned nothing.]"


def foreign_result(result: Mapping[str, Any]) -> ForeignResult:
    """A result as MCP's JSON has it → as a model gets it.

    Texts, links and embedded resources become text. If there are none, and no image, structured
    content is used instead, as JSON: some servers repeat an image there, in base64. A sound, or
    a file that is no text, becomes a note.
    """
    blocks: Sequence[Mapping[str, Any]] = result.get("content") or ()
    texts: list[str] = []
    pictures: list[str] = []
    for block in blocks:
        if block.get("type") == "image":
            pictures.append(f"data:{block.get('mimeType')};base64,{block.get('data')}")
        else:
            texts.append(_in_words(block))
    structured = result.get("structuredContent")
    if structured is not None and not texts and not pictures:
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = "\n".join(texts)
    if not text and not pictures:
        text = _EMPTY
    is_error = bool(result.get("isError"))
    if is_error:
        text = f"Error: {text}"
    return ForeignResult(text, tuple(pictures), is_error)


def _in_words(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource_link":
        words = []
        for name in ("name", "uri", "description"):
            if block.get(name):
                words.append(str(block[name]))
        return f"[link: {' '.join(words)}]"
    if kind == "resource":
        return _resource_in_words(block.get("resource") or {})
    what = block.get("mimeType") or kind
    return f"[{what}, which this model cannot read]"


def _resource_in_words(resource: Mapping[str, Any]) -> str:
    uri = resource.get("uri")
    if "text" in resource:
        return f"{uri}:\n{resource['text']}"
    blob = str(resource.get("blob", ""))
    num_bytes = len(blob) * 3 // 4  # base64 has 4 characters for 3 bytes
    what = resource.get("mimeType") or "data"
    return f"[{uri}: {num_bytes:,} bytes of {what}, which are no text]"
