"""Coding agents: the settings with which they use a server, and the context that they need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from string import Template
from typing import NamedTuple

from localspec.errors import OptionError

AGENT_CONTEXT = 32_768
"""Tokens of context with which every agent here works."""

_ROOM = 4_000
"""Tokens that an agent needs beside its first prompt: for files that it reads, and answers."""

_CONTEXT_PER_ANSWER = 4
"""opencode reserves for an answer the context divided by this."""

_KEY = "local"  # a server without keys accepts any key


class ServerForAgent(NamedTuple):
    """The server that an agent is to use, and its model."""

    address: str
    """The server's address, such as http://127.0.0.1:8617."""

    model: str
    """The model's name."""

    context: int
    """The context of the model in tokens."""

    num_trained: int
    """The tokens of context that the model was trained for."""


# Arguments and environment variables with which a program uses a server. A variable whose value
# is None is removed.
LaunchSettings = tuple[list[str], dict[str, str | None]]


class Agent(NamedTuple):
    """A program that can be started with a server."""

    title: str

    package: str
    """Its name in npm."""

    first_prompt: int
    """About the number of tokens of its first prompt: instructions, tools and a question.

    Counted in Qwen2.5's vocabulary, as Claude Code 2.1.197, Codex 0.171 and opencode 1.18.33
    ask "Say hello." in an empty git repository.
    """

    settings_for: Callable[[ServerForAgent], LaunchSettings]
    """Gives its arguments and environment variables for a server."""

    settings: Template
    """The same settings for a person to copy, below a line that says where they belong."""

    @property
    def least_context(self) -> int:
        """The smallest context, in tokens, with which the agent works."""
        return self.first_prompt + _ROOM


def _settings_for_claude(server: ServerForAgent) -> LaunchSettings:
    """Claude Code's arguments and environment variables for a server."""
    variables: dict[str, str | None] = {
        "ANTHROPIC_BASE_URL": server.address,
        "ANTHROPIC_AUTH_TOKEN": _KEY,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context),
    }
    for name in os.environ:
        if name.startswith("CLAUDE_CODE_USE_"):
            variables[name] = None  # with it Claude Code would ask a cloud instead
    return ["--model", server.model], variables


def _settings_for_codex(server: ServerForAgent) -> LaunchSettings:
    """Codex's arguments for a server: each sets a key of its configuration."""
    provider = "model_providers.localspec"
    settings: dict[str, str | int] = {
        "model": server.model,
        "model_provider": "localspec",
        "model_context_window": server.context,
        f"{provider}.name": "localspec",
        f"{provider}.base_url": f"{server.address}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.experimental_bearer_token": _KEY,
    }
    arguments = []
    for key, value in settings.items():
        # A JSON string is also a TOML string.
        arguments += ["-c", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return arguments, {}


def _settings_for_opencode(server: ServerForAgent) -> LaunchSettings:
    """opencode's environment variable for a server."""
    # This variable takes precedence over opencode's files.
    return [], {"OPENCODE_CONFIG_CONTENT": _opencode_json(server, _KEY)}


def _opencode_json(server: ServerForAgent, key: str) -> str:
    """The content of an opencode.json for a server, with an API key of the server."""
    limit = {"context": server.context, "output": server.context // _CONTEXT_PER_ANSWER}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{server.address}/v1", "apiKey": key},
        "models": {server.model: {"limit": limit}},
    }
    settings = {"model": f"localspec/{server.model}", "provider": {"localspec": provider}}
    return json.dumps(settings, ensure_ascii=False)


# The context length is among the settings: agents that do not know it assume a far longer one,
# and send too much.
_CLAUDE_SETTINGS = Template("""\
Claude Code:
  export ANTHROPIC_BASE_URL=$address ANTHROPIC_AUTH_TOKEN=$key
  CLAUDE_CODE_MAX_CONTEXT_TOKENS=$context claude --model $model
""")
_CODEX_SETTINGS = Template("""\
Codex, in ~/.codex/config.toml:
  model = "$model"
  model_provider = "localspec"
  model_context_window = $context
  [model_providers.localspec]
  name = "localspec"
  base_url = "$address/v1"
  wire_api = "responses"
  experimental_bearer_token = "$key"
""")
_OPENCODE_SETTINGS = Template("""\
opencode, in opencode.json:
  $opencode
""")

AGENTS = {
    "claude": Agent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        21_000,
        _settings_for_claude,
        _CLAUDE_SETTINGS,
    ),
    "codex": Agent("Codex", "@openai/codex", 8_600, _settings_for_codex, _CODEX_SETTINGS),
    "opencode": Agent(
        "opencode",
        "opencode-ai",
        7_200,
        _settings_for_opencode,
        _OPENCODE_SETTINGS,
    ),
}


def settings_of_agents(server: ServerForAgent, key: str) -> str:
    """Text with settings to copy into the agents, and with the agents that need more context.

    Args:
        server: the server and its model.
        key: an API key of the server.
    """
    fields = {
        **server._asdict(),
        "key": key,
        "opencode": _opencode_json(server, key),
    }
    settings = ""
    unsuited = []
    for agent in AGENTS.values():
        if agent.least_context <= server.context:
            settings += agent.settings.substitute(fields)
        else:
            unsuited.append(agent)
    if not unsuited:
        return settings
    needs = [f"{agent.title} ({agent.least_context:,} tokens)" for agent in unsuited]
    least_context = min(agent.least_context for agent in unsuited)
    remedy = _context_option(server.num_trained, least_context)
    if remedy is None:
        remedy = f"this model was trained for {server.num_trained:,} tokens"
    return f"{settings}A larger context is needed for {', '.join(needs)}: {remedy}.\n"


def require_context(
    agent: Agent,
    context: int,
    num_trained: int,
    first_step: str,
) -> None:
    """Raise OptionError if the context is too small for the agent.

    Args:
        agent: the agent.
        context: the context of the model in tokens.
        num_trained: the tokens of context that the model was trained for.
        first_step: what the user has to do before the context can be changed: a sentence and a
            space, or "".
    """
    least_context = agent.least_context
    if context >= least_context:
        return
    option = _context_option(num_trained, least_context)
    if option is None:
        remedy = f"Choose another model: this one was trained for {num_trained:,} tokens."
    else:
        remedy = f"Give a larger one: {option}."
    raise OptionError(
        f"{agent.title} does not work with a context of {context:,} tokens: it needs "
        f"{least_context:,}",
        f"{first_step}{remedy}",
    )


def _context_option(num_trained: int, least_context: int) -> str | None:
    """The option that sets a context for agents; None if a model cannot have `least_context`.

    Args:
        num_trained: the tokens of context that the model was trained for.
        least_context: the smallest useful context in tokens.
    """
    if num_trained >= least_context:
        return f"--ctx {min(num_trained, AGENT_CONTEXT)}"
    return None
