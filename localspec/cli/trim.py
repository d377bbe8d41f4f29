"""`localspec models trim`: drafts and heads that propose some tokens only."""

from __future__ import annotations

from pathlib import Path

import click

from localspec.cli.completion import complete_file, complete_model
from localspec.cli.help import Command
from localspec.cli.quantities import readable_bytes
from localspec.cli.screen import printable
from localspec.cli.waiting import waiting
from localspec.gguf_file.trimmed import DEFAULT_TOKENS
from localspec.presets.located import locate_source


@click.command(cls=Command, name="trim")
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=DEFAULT_TOKENS,
    show_default=True,
    help="How many tokens it may propose.",
)
@click.option(
    "--texts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    shell_complete=complete_file,
    help="A text like those that you ask for, whose tokens come first. May be given again.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where it goes. [default: beside MODEL]",
)
def trim_model(
    *, model: str, tokens: int, texts: tuple[Path, ...], output: Path | None
) -> None:
    """Write a copy of a draft or a head that proposes fewer tokens and is quicker.

    Its output layer keeps the rows of some tokens only: those that every answer needs, those of
    your texts and of what --memory keeps for the same tokenizer, frequent ones of code, and
    those with the lowest ids, which are the most frequent ones. What you get to read stays the
    same; where another token is needed, a draft is refused. MODEL is the file of a draft or of
    an EAGLE-3 head, or one that has an MTP head. The new file lies beside it and is used in its
    place where that pays more, which 'localspec explain' says.

    \b
        localspec models trim D.gguf
        localspec models trim D.gguf --tokens 8192 --texts notes.txt
        localspec models trim T-with-MTP.gguf
    """
    # Imported here, because NumPy takes its time.
    from localspec.chat.text_file import read_text_file
    from localspec.engine.trimming import trim

    path = locate_source(model, "draft")
    with waiting(lambda: f"Trimming {path.name} …"):
        read = [read_text_file(text) for text in texts]
        made = trim(path, num_tokens=tokens, texts=read, out=output)
    lines = [
        f"{made.num_tokens} of {made.num_all} tokens, the output layer takes "
        f"{readable_bytes(made.trimmed_bytes)} instead of {readable_bytes(made.output_bytes)}"
    ]
    if made.num_seen:
        lines.append(f"{made.num_seen} of them are in your texts and memories")
    click.echo(printable("\n".join(lines)), err=True)
    click.echo(made.path)
