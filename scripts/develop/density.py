"""Counts how much a reader has to take in: syntax nodes, and how densely they stand.

    python scripts/develop/density.py FOLDER...
    python scripts/develop/density.py --worst 20 FOLDER

Prints a row for each folder, or the functions with the most syntax nodes a line. No test holds
these numbers: what counts is that a stranger reads a function once.

A syntax node is one of `ast`'s, except contexts (Load, Store) and docstrings. A line counts if
code stands on it.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MIN_FUNCTION_LINES = 8  # shorter functions are not listed as the worst


def is_tuple_assignment(node: ast.AST) -> bool:
    """Whether a statement assigns several values at once: `a, b = x, y`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


# Forms that put several thoughts on one line.
DENSE_FORMS: dict[str, Callable[[ast.AST], bool]] = {
    "a, b = x, y": is_tuple_assignment,
    "x if c else y": lambda node: isinstance(node, ast.IfExp),
    "comprehensions": lambda node: isinstance(node, COMPREHENSIONS),
    ":=": lambda node: isinstance(node, ast.NamedExpr),
    "lambda": lambda node: isinstance(node, ast.Lambda),
}


@dataclass
class Count:
    """What stands in some files."""

    num_nodes: int = 0
    num_lines: int = 0
    forms: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DENSE_FORMS, 0))

    def add(self, file: SourceFile) -> None:
        """Add what stands in a file."""
        nodes = nodes_of(file.tree)
        self.num_nodes += len(nodes)
        self.num_lines += len(file.lines)
        for name, is_form in DENSE_FORMS.items():
            self.forms[name] += sum(map(is_form, nodes))

    def __str__(self) -> str:
        num_lines = max(self.num_lines, 1)
        forms = [f"{name} {1000 * n / num_lines:.1f}" for name, n in self.forms.items()]
        return (
            f"{self.num_nodes} nodes, {self.num_lines} lines of code, "
            f"{self.num_nodes / num_lines:.2f} nodes a line; "
            f"per 1,000 lines: {', '.join(forms)}"
        )


class SourceFile:
    """A Python file without its docstrings.

    Attributes:
        tree: Its syntax tree.
        lines: The numbers of the lines on which code stands.
    """

    def __init__(self, path: Path) -> None:
        source = path.read_text("utf-8")
        self.tree = ast.parse(source)
        docstring_lines = remove_docstrings(self.tree)
        self.lines = code_lines(source) - docstring_lines


def code_lines(source: str) -> set[int]:
    """The numbers of the lines on which code stands."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def remove_docstrings(tree: ast.AST) -> set[int]:
    """Replace each docstring by `pass`. Returns the numbers of the docstrings' lines."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        first = body[0]
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str):
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
            body[0] = ast.Pass(lineno=first.lineno, col_offset=0)
    return lines


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """The syntax nodes of a tree that count."""
    return [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]


def files_in(folder: Path) -> Iterator[tuple[Path, SourceFile]]:
    """The Python files of a folder, in the order of their names."""
    for path in sorted(folder.rglob("*.py")):
        yield path, SourceFile(path)


def dense_functions(folder: Path) -> list[tuple[float, str]]:
    """The nodes a line of each function that is not short, and where it is; densest first."""
    functions = []
    for path, file in files_in(folder):
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            own_lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            num_lines = len(file.lines.intersection(own_lines))
            if num_lines < MIN_FUNCTION_LINES:
                continue
            nodes_a_line = len(nodes_of(node)) / num_lines
            place = f"{path}:{node.lineno} {node.name}"
            text = f"{place}: {nodes_a_line:.1f} nodes a line, {num_lines} lines"
            functions.append((nodes_a_line, text))
    return sorted(functions, reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        if arguments.worst:
            for _, text in dense_functions(folder)[: arguments.worst]:
                print(text)
            continue
        count = Count()
        for _, file in files_in(folder):
            count.add(file)
        print(f"{folder}: {count}")


if __name__ == "__main__":
    main()
