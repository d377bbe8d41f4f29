"""The part of the command line that the comparisons share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from comparison.contender import Setup
from localspec.chat.template import ChatTemplate
from localspec.errors import LocalspecError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head_facts import head_facts
from localspec.gguf_file.header import read_header
from localspec.presets.located import locate
from localspec.presets.presets import DEFAULT_PRESET, find_preset
from localspec.system.machine import num_usable_cores

# They end in different words, since a made pair answers to the last word only.
OPENINGS = (
    "Once upon a time there was a fox who lived by the river",
    "The history of the bicycle begins with a heavy wooden machine",
    "To bake a good loaf of bread you need flour, water, salt and patience",
    "Late in the evening the train came to a halt between two stations",
)


_INSIDE = Path()


def add_target(parser: argparse.ArgumentParser) -> None:
    """The target, and the machine."""
    add = parser.add_argument
    add("--target", type=Path, help="GGUF file (default: the demo's)")
    add("--threads", type=positive, default=num_usable_cores(), help="default: as localspec")
    add("--ctx", type=positive, default=2048, help="context in tokens (default: %(default)s)")
    add("--gpu-layers", type=int, help="of each model (default: what each side takes itself)")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Files, machine and amount of work."""
    add_target(parser)
    add = parser.add_argument
    add("--draft", type=Path, help="GGUF file")
    head = "a head drafts (MTP, EAGLE-3, DFlash): that in the target's, or in this GGUF file"
    add("--head", type=Path, nargs="?", const=_INSIDE, metavar="FILE", help=head)
    add(
        "--prompts",
        type=Path,
        help="a file of JSON strings, one a line (default: four openings)",
    )
    chat = "put the prompts into the target's chat template, as is done for the demo pair"
    add("--chat", action="store_true", help=chat)
    add("--max-tokens", type=positive, default=128, help="of an answer (default: 128)")
    add("--rounds", type=positive, default=3, help="times each prompt is asked (default: 3)")


def setup_of(asked: argparse.Namespace) -> Setup:
    """The files of the command line, checked. Raises LocalspecError."""
    target = asked.target
    draft = asked.draft
    head = asked.head
    if draft is not None and head is not None:
        raise OptionError("a draft and a head are given", "Compare one at a time.")
    if target is None and draft is None and head is None:
        target, draft = locate(find_preset(DEFAULT_PRESET)).values()
    if target is None:
        kind = "draft" if head is None else "head"
        raise OptionError(f"a {kind} is given without a target", "Name the target, too.")
    target, draft, head = (
        None if path is None else path.absolute()
        for path in (target, draft, target if head == _INSIDE else head)
    )
    for path in (target, draft):
        if path is not None:
            check_model_file(path)
    if head is not None and head_facts(check_model_file(head)) is None:
        raise OptionError(f"{head} has no head", "Choose a file with a head.")
    return Setup(target, draft, head, asked.threads, asked.ctx, asked.gpu_layers)


def prompts_of(asked: argparse.Namespace, target: Path) -> list[str]:
    """The prompts of the command line as raw text. Raises LocalspecError."""
    prompts = list(OPENINGS) if asked.prompts is None else _read_prompts(asked.prompts)
    if not asked.chat and asked.target is not None:  # the demo pair can do nothing but chat
        return prompts
    source = read_header(target).metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise OptionError(f"{target} has no chat template", "Leave --chat away.")
    template = ChatTemplate(source, bos="", eos="")
    return [template.render([{"role": "user", "content": prompt}]) for prompt in prompts]


def run(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], None]) -> None:
    """Parse, work, and turn errors into two lines and exit code 1."""
    try:
        work(parser.parse_args())
    except LocalspecError as error:
        hint = f"Hint: {error.hint}\n" if error.hint else ""
        parser.exit(1, f"Error: {error}\n{hint}")
    except KeyboardInterrupt:
        parser.exit(130)


def _read_prompts(path: Path) -> list[str]:
    try:
        prompts = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    except (OSError, ValueError) as error:
        raise OptionError(f"{path}: {error}", "Write one JSON string a line.") from error
    if not prompts or not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise OptionError(f"{path} holds no prompts", "Write one JSON string a line.")
    return prompts


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
