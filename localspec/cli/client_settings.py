"""What people type, or put into a file, to have a program ask the server."""

from __future__ import annotations

_SETTINGS = """\
Listening on {address} with {model} (context {context}). Ctrl-C stops.

OpenAI's libraries, aider, Open WebUI:
  export OPENAI_BASE_URL={address}/v1 OPENAI_API_BASE={address}/v1 OPENAI_API_KEY={key}
  aider --model openai/{model}
  OPENAI_API_BASE_URL={address}/v1 open-webui serve
Claude Code:
  ANTHROPIC_BASE_URL={address} ANTHROPIC_AUTH_TOKEN={key} claude --model {model}
Codex, in ~/.codex/config.toml:
  model = "{model}"
  model_provider = "localspec"
  [model_providers.localspec]
  name = "localspec"
  base_url = "{address}/v1"
  wire_api = "responses"
opencode, in opencode.json:
  {{"provider": {{"localspec": {{"npm": "@ai-sdk/openai-compatible",
    "options": {{"baseURL": "{address}/v1"}}, "models": {{"{model}": {{}}}}}}}}}}
"""


def ready_settings(address: str, model: str, context_length: int, *, has_key: bool) -> str:
    """For each of them. address: as http://127.0.0.1:8617. has_key: whether one is needed."""
    key = "YOUR_KEY" if has_key else "local"
    return _SETTINGS.format(address=address, model=model, context=context_length, key=key)
