"""Converts the result of a call, as MCP has it, to text and pictures for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.tools.foreign import ForeignResult

_EMPTY = "[The tool returned nothing.]"


def foreign_result(result: Mapping[str, Any]) -> ForeignResult:
    """Convert the result of a call from MCP's JSON to text and pictures.

    Texts, links and embedded resources become text. Audio, and files that are not text, become
    notes. Structured content is used, as JSON, only if there is neither text nor an image: some
    servers repeat an image there, in base64. The text of an error begins with "Error: ".
    """
    blocks: Sequence[Mapping[str, Any]] = result.get("content") or ()
    texts: list[str] = []
    pictures: list[str] = []
    for block in blocks:
        if block.get("type") == "image":
            pictures.append(f"data:{block.get('mimeType')};base64,{block.get('data')}")
        else:
            texts.append(_block_text(block))
    text = "\n".join(texts)
    if not text and not pictures:
        structured_content = result.get("structuredContent")
        if structured_content is None:
            text = _EMPTY
        else:
            text = json.dumps(structured_content, ensure_ascii=False)
    is_error = bool(result.get("isError"))
    if is_error:
        text = f"Error: {text}"
    return ForeignResult(text, tuple(pictures), is_error)


def _block_text(block: Mapping[str, Any]) -> str:
    """The text of a block of content, or a note for one that is not text."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource_link":
        link_parts = []
        for key in ("name", "uri", "description"):
            if block.get(key):
                link_parts.append(str(block[key]))
        return f"[link: {' '.join(link_parts)}]"
    if kind == "resource":
        return _resource_text(block.get("resource") or {})
    media_type = block.get("mimeType") or kind
    return f"[{media_type}, which this model cannot read]"


def _resource_text(resource: Mapping[str, Any]) -> str:
    """The text of an embedded resource after its URI, or a note for one that is not text."""
    uri = resource.get("uri")
    if "text" in resource:
        return f"{uri}:\n{resource['text']}"
    blob = str(resource.get("blob", ""))
    num_bytes = len(blob) * 3 // 4  # base64 has 4 characters for 3 bytes
    media_type = resource.get("mimeType") or "data"
    return f"[{uri}: {num_bytes:,} bytes of {media_type}, which are no text]"
