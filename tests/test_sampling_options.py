"""Sampling options on the command line, with the real demo pair."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from command_line import run

import localspec
from localspec.cli.options import changed_sampling
from localspec.errors import OptionError

STORY = "Tell me a story about a fox."


def generate(*options: object) -> dict[str, Any]:
    """The --json answer of a greedy, short generate with more options."""
    shared = ["generate", "--json", "--temperature", "0", "--max-tokens", "60"]
    shared += ["--draft-tokens", "3"]
    result = run(*shared, *options, STORY)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def engine(demo_target):
    with localspec.load(target=demo_target) as engine:
        yield engine


def test_options_become_params(engine):
    """By name and type; 0 is a value, what was not given stays the preset's."""
    params = changed_sampling(
        engine,
        {
            "top_k": 0,
            "min_p": 0.0,
            "dry_sequence_breakers": (r"\n", "a"),
            "logit_bias": {5: 1.0},
        },
    )
    assert params == localspec.SamplingParams(
        top_k=0, min_p=0.0, dry_sequence_breakers=("\n", "a"), logit_bias={5: 1.0}
    )
    assert changed_sampling(engine, {}) == engine.sampling
    assert changed_sampling(engine, {"dry_sequence_breakers": ("none",)}) == (
        localspec.SamplingParams(dry_sequence_breakers=())
    )


def test_bans_name_tokens_by_text_or_id(engine):
    """Exactly one token: a text of several is no ban."""
    (fox,) = engine.vocabulary.tokenize(" fox", parse_special=True)
    params = changed_sampling(engine, {"ban": (" fox", "17"), "logit_bias": {fox: 1.0}})
    assert params.logit_bias == {fox: -math.inf, 17: -math.inf}
    with pytest.raises(OptionError, match=r"is \d+ tokens for this model") as caught:
        changed_sampling(engine, {"ban": ("a fox and an owl",)})
    assert "id" in caught.value.hint


def test_a_banned_token_is_never_said():
    """Whichever way it is banned, the draft knows, too."""
    plain = generate()
    first = plain["token_ids"][0]
    for ban in (["--ban", first], ["--logit-bias", f"{first}=-inf"]):
        banned = generate(*ban)
        assert first not in banned["token_ids"]
        assert banned["stats"]["num_accepted"] > 0
    assert generate("--logit-bias", f"{first}=-0.0")["token_ids"] == plain["token_ids"]


@pytest.mark.parametrize(
    "options",
    [
        ["--repeat-penalty", 1.3, "--repeat-last-n", 200],
        ["--presence-penalty", 1.0, "--frequency-penalty", 0.5],
        ["--dry-multiplier", 20.0, "--dry-allowed-length", 1, "--dry-sequence-breaker", "none"],
    ],
)
def test_penalties_give_the_same_text_with_and_without_a_draft(options):
    """Their history advances along the draft; and they do change the text."""
    drafted = generate(*options)
    plain = generate(*options, "--no-draft")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["token_ids"] != generate()["token_ids"]
    assert drafted["stats"]["num_accepted"] > 0
