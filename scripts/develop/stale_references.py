"""Lists what docstrings, comments and pages name although it is not there any more.

    python scripts/develop/stale_references.py

Four kinds of reference are looked up:

- the path of a file, also without backticks, as tests/whole/test_docs.py; in backticks the end
  of one is enough, as `loop.py`;
- a test, as test_docs::test_every_page_is_in_the_navigation;
- in backticks, a dotted name that begins with a module or class of localspec, as `Engine.chat`;
- in backticks in the code and the pages about it, any other name, as `draft_tokens`.

A path that is said to be "of commit 1234567" is not looked up.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = ("localspec", "tests", "scripts", "examples", "docs", ".github", ".ci")
# What changes with every release speaks of the past.
HISTORY = {"CHANGELOG.md"}
# Keys of GGUF headers, which begin like our module, and files of llama.cpp.
FOREIGN = {
    "medusa.block_count",
    "medusa.embedding_length",
    "medusa.residual_count",
    "convert_lora_to_gguf.py",
    "docs/autoparser.md",
}
# Pages about the code: what they put in backticks are names of the code.
ABOUT_CODE = {"ARCHITECTURE.md", "CONTRIBUTING.md"}
TEXTS = {".md", ".toml", ".yml", ""}

_PATH = re.compile(
    r"(?<![\w/.~-])(?:localspec|tests|scripts|examples|docs)/(?:[\w.-]+/)*"
    r"[\w-]+\.(?:py|pyi|md)\b(?!.* of commit [0-9a-f]{7})"
)
_END_OF_PATH = re.compile(r"`([\w./-]+\.(?:py|md))`")
_TEST = re.compile(r"\b(test_\w+)(?:\.py)?::(test_\w+)")
_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")
_SUFFIX_OF_FILE = re.compile(r"\.(?:css|dll|gguf|html|jinja|js|json|md|py|so|toml|txt|yml)$")


class Text(NamedTuple):
    """A stretch of a file that people read: a docstring, a comment, a line of a page."""

    file: str
    line: int
    text: str


class Reference(NamedTuple):
    """What a text names, and where."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


class Names:
    """What the Python files of a repository define.

    Attributes:
        tests: "test_docs::" and the name, for every test.
        dotted: every module, class, function and attribute of localspec, by each end of its
            full name that has a dot: "engine.engine.Engine.chat", "Engine.chat" and so on.
        heads: the names of modules and classes of localspec.
        words: every identifier, and every word in a string that is no docstring.
    """

    def __init__(self) -> None:
        self.tests: set[str] = set()
        self.dotted: set[str] = set()
        self.heads: set[str] = set()
        self.words: set[str] = set()
        self._members: dict[str, set[str]] = {}
        self._bases: dict[str, list[str]] = {}

    def add(self, file: str, tree: ast.Module) -> None:
        """Note what a file defines."""
        path = Path(file).with_suffix("")
        self.words.update(path.parts)
        self.words.update(_words(tree))
        if path.name.startswith("test_"):
            functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
            self.tests.update(f"{path.name}::{each.name}" for each in functions)
        if path.parts[0] == "localspec":
            is_package = path.name == "__init__"
            self._add_module(path.parts[:-1] if is_package else path.parts, tree)
        if file == "localspec/__init__.pyi":
            imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
            self.dotted.update(
                f"localspec.{alias.name}" for each in imports for alias in each.names
            )

    def _add_module(self, parts: tuple[str, ...], tree: ast.Module) -> None:
        module = ".".join(parts)
        self.heads.add(parts[-1])
        self._add_name(module)
        for name in _defined(tree.body):
            self._add_name(f"{module}.{name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.heads.add(node.name)
                self._members.setdefault(node.name, set()).update(_members(node))
                self._bases[node.name] = [_last_part(base) for base in node.bases]
                self._add_name(f"{module}.{node.name}")

    def _add_name(self, full: str) -> None:
        parts = full.split(".")
        self.dotted.update(".".join(parts[i:]) for i in range(len(parts) - 1))

    def add_members(self) -> None:
        """Note the attributes of classes, once all classes are known.

        An attribute may be said of the class, of `localspec.` and the class, or of a variable
        that is named like the class.
        """
        for name in self._members:
            variable = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.lstrip("_")).lower()
            self.dotted.add(f"localspec.{name}")
            for member in self._all_members(name):
                self.dotted.add(f"{variable}.{member}")
                self._add_name(f"localspec.{name}.{member}")

    def _all_members(self, name: str) -> set[str]:
        """With those of the classes that it is derived from."""
        lineage = [name]
        for cls in lineage:
            lineage += [base for base in self._bases.get(cls, ()) if base not in lineage]
        return set().union(*(self._members.get(cls, ()) for cls in lineage))


def _last_part(base: ast.expr) -> str:
    """The name of a class in a list of bases: `C` of `package.C[int]`."""
    return ast.unparse(base).split("[")[0].split(".")[-1]


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """What a body of statements gives names to, except by importing it."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from _stored(target)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, field, []))


def _stored(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def _members(cls: ast.ClassDef) -> Iterator[str]:
    """What a class defines, and what its methods store in an object."""
    yield from _defined(cls.body)
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _words(tree: ast.Module) -> Iterator[str]:
    """Identifiers, and words in strings that are no docstrings."""
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield from value.split(".")
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_string and id(node) not in docstrings:
            yield from re.findall(r"\w+", node.value)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _texts(file: str, source: str, tree: ast.Module | None) -> Iterator[Text]:
    """What people read of a file. tree: of Python."""
    if tree is None:
        for i, line in enumerate(source.splitlines(), 1):
            yield Text(file, i, line)
        return
    for constant in _docstrings(tree):
        for i, line in enumerate(str(constant.value).splitlines(), constant.lineno):
            yield Text(file, i, line)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(file, token.start[0], token.string)


def stale(root: Path) -> list[Reference]:
    """Each reference to something that is not there, those in FOREIGN among them.

    Args:
        root: the repository's folder.
    """
    found = _files(root)
    names = Names()
    texts: list[Text] = []
    for file in sorted(found):
        path = root / file
        if path.suffix not in TEXTS | {".py", ".pyi"} or file in HISTORY:
            continue
        source = path.read_text("utf-8")
        tree = ast.parse(source) if path.suffix in {".py", ".pyi"} else None
        if tree is not None:
            names.add(file, tree)
        elif path.suffix != ".md":
            names.words.update(re.findall(r"\w+", source))
        texts += _texts(file, source, tree)
    names.add_members()
    return [
        Reference(text.file, text.line, name)
        for text in texts
        for name in _stale_in(text, found, names)
    ]


def _files(root: Path) -> set[str]:
    """The repository's files, below `root`."""
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    paths += root.iterdir()
    return {
        path.relative_to(root).as_posix()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def _stale_in(text: Text, files: set[str], names: Names) -> Iterator[str]:
    """What a text names that is not there."""
    for path in _PATH.findall(text.text):
        if path not in files:
            yield path
    for end in _END_OF_PATH.findall(text.text):
        is_file = any(f"/{file}".endswith(f"/{end}") for file in files)
        if not is_file and not _PATH.search(end):
            yield end
    for module, test in _TEST.findall(text.text):
        if f"{module}::{test}" not in names.tests:
            yield f"{module}::{test}"
    is_about_code = text.file.endswith((".py", ".pyi")) or text.file in ABOUT_CODE
    for name in _NAME.findall(text.text):
        if "." in name:
            is_stale = _is_stale_dotted(name, names, is_about_code=is_about_code)
        else:
            is_stale = is_about_code and len(name) > 2 and name not in names.words
        if is_stale:
            yield name


def _is_stale_dotted(name: str, names: Names, *, is_about_code: bool) -> bool:
    """Whether it begins like a name of localspec, and is none.

    In the pages for users a name in small letters may be a variable of theirs, as "chat": only
    those that begin with `localspec` or a class are looked up there.
    """
    head = name.removeprefix("localspec.").split(".")[0]
    is_ours = name.startswith("localspec.") or head in names.heads
    if not is_about_code and name[0].islower() and not name.startswith("localspec."):
        is_ours = False
    return is_ours and name not in names.dotted and not _SUFFIX_OF_FILE.search(name)


if __name__ == "__main__":
    for reference in stale(ROOT):
        if reference.name not in FOREIGN:
            print(reference)
