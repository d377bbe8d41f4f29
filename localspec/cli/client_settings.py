"""What people type, or put into a file, to have a program ask the server."""

from __future__ import annotations

from string import Template

# Agents that are not told the context believe in a far longer one, and send more and more.
_SETTINGS = Template("""\
Listening on $address with $model (context $context). Ctrl-C stops.

OpenAI's libraries, aider, Open WebUI:
  export OPENAI_BASE_URL=$address/v1 OPENAI_API_BASE=$address/v1 OPENAI_API_KEY=$key
  aider --model openai/$model --no-show-model-warnings
  OPENAI_API_BASE_URL=$address/v1 open-webui serve
Ollama's library for Python, and programs that ask an Ollama:
  export OLLAMA_HOST=$address OLLAMA_API_KEY=$key
Claude Code:
  export ANTHROPIC_BASE_URL=$address ANTHROPIC_AUTH_TOKEN=$key
  CLAUDE_CODE_MAX_CONTEXT_TOKENS=$context claude --model $model
Codex, in ~/.codex/config.toml:
  model = "$model"
  model_provider = "localspec"
  model_context_window = $context
  [model_providers.localspec]
  name = "localspec"
  base_url = "$address/v1"
  wire_api = "responses"
  experimental_bearer_token = "$key"
opencode, in opencode.json:
  {"model": "localspec/$model", "provider": {"localspec": {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "$address/v1", "apiKey": "$key"},
    "models": {"$model": {"limit": {"context": $context, "output": $output}}}}}}
""")
_OUTPUT_SHARE = 4  # an answer's part of the context, which opencode leaves free for it


def ready_settings(address: str, model: str, context_length: int, *, has_key: bool) -> str:
    """For each of them. address: as http://127.0.0.1:8617. has_key: whether one is needed."""
    return _SETTINGS.substitute(
        address=address,
        model=model,
        context=context_length,
        output=context_length // _OUTPUT_SHARE,
        key="YOUR_KEY" if has_key else "local",
    )
