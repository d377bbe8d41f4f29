"""Python's types as JSON schemas, and objects of these types from JSON, by Pydantic."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from localspec.errors import ConstraintError, OptionError, ParseError
from localspec.tools.schemas import Node, changed_schema

_INSTALL = "Install it: pip install 'localspec[grammar]'."


def has_fields(kind: object) -> bool:
    """Whether it is a dataclass or a Pydantic model class, which has `model_json_schema`."""
    is_dataclass = isinstance(kind, type) and dataclasses.is_dataclass(kind)
    return is_dataclass or hasattr(kind, "model_json_schema")


def class_schema(kind: Any) -> Node:
    """The JSON schema of a class that `has_fields`.

    Its objects have these fields and no others, unless a Pydantic model allows others.

    Raises:
        ConstraintError: If Pydantic makes no schema of the class, or is not installed.
    """
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ConstraintError(
            f"the JSON schema of {kind.__name__} needs Pydantic, which is not installed",
            f"{_INSTALL} Or give the schema as a dict.",
        ) from error
    try:
        if hasattr(kind, "model_json_schema"):
            schema = kind.model_json_schema()
        else:
            schema = TypeAdapter(kind).json_schema()
    except Exception as error:  # of several kinds, all Pydantic's own
        raise ConstraintError(
            f"the class {kind.__name__} has no JSON schema: {error}",
            "Use types that JSON has, and define them at the top of its module.",
        ) from error
    return changed_schema(schema, _close)


def _close(node: Node) -> None:
    """Allow an object the fields of its class, and no others."""
    if node.get("type") == "object" and isinstance(node.get("properties"), Mapping):
        node.setdefault("additionalProperties", False)


def class_object(kind: Any, text: str) -> Any:
    """The object of a class that `has_fields` from its JSON.

    Raises:
        ParseError: If the class refuses the JSON.
    """
    try:
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(text)
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_json(text)
    except Exception as error:  # the checks of a class may raise anything
        raise ParseError(
            f"the answer does not fit {kind.__name__}: {faults(error)}",
            "The class has checks that its JSON schema does not have. Read the reply's text, "
            "or ask again and state what has to hold.",
        ) from error


class FunctionArguments:
    """The arguments of a function: their JSON schema, and a check of a model's arguments.

    Args:
        function: A function or method, which may be async.

    Raises:
        OptionError: If an argument cannot be given by name, or its annotation is unknown or
            has no JSON schema; and if Pydantic is not installed.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        name = function.__name__
        try:
            from pydantic import TypeAdapter
        except ImportError as error:
            raise OptionError(
                f"the JSON schema of the function {name} needs Pydantic, which is not "
                "installed",
                f"{_INSTALL} Or give the tool as a dict.",
            ) from error
        arguments = _named_arguments(function)

        def return_arguments(**values: Any) -> dict[str, Any]:
            return values

        # Pydantic checks the arguments of a function with this signature. Its annotations are
        # types, not texts, so that Pydantic need not look up names in the function's module.
        signed: Any = return_arguments
        signed.__signature__ = inspect.Signature(arguments)
        signed.__annotations__ = {}
        for argument in arguments:
            if argument.annotation is not argument.empty:
                signed.__annotations__[argument.name] = argument.annotation
        try:
            adapter = TypeAdapter(signed)
            schema = adapter.json_schema()
        except Exception as error:  # of several kinds, all Pydantic's own
            refused = ", ".join(map(str, filter(_is_refused, arguments)))
            reason = str(error).splitlines()[0]
            raise OptionError(
                f"the function {name} has no JSON schema, because of its arguments "
                f"{refused}: {reason}",
                "Annotate them with types that JSON has: str, int, list[str], Literal, a "
                "dataclass. Or give the tool as a dict.",
            ) from error
        self._adapter: Any = adapter
        self.schema = changed_schema(schema, _tidy)
        self.names = frozenset(self.schema["properties"])

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as objects of their types, with the defaults of missing ones.

        Raises ValueError if they do not fit.
        """
        from pydantic import ValidationError
        from pydantic_core import ArgsKwargs

        keywords = ArgsKwargs((), {**values})
        try:
            arguments: dict[str, Any] = self._adapter.validate_python(keywords)
        except ValidationError as error:
            raise ValueError(faults(error)) from error
        return arguments


def _named_arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The arguments of a function, whose annotations are types and not texts.

    Raises OptionError for one that cannot be given by name, and for an unknown annotation.
    """
    name = function.__name__
    try:
        arguments = inspect.signature(function, eval_str=True).parameters.values()
    except Exception as error:  # annotations may be any expressions
        raise OptionError(
            f"the signature of the function {name} cannot be read: {error}",
            "Define the types of its arguments at the top of its module. Or give the tool as a "
            "dict.",
        ) from error
    for argument in arguments:
        if argument.kind in (argument.POSITIONAL_ONLY, argument.VAR_POSITIONAL):
            raise OptionError(
                f"the argument {argument} of the function {name} cannot be given by name",
                "A model gives all arguments by name. Leave out the /, and take a list where "
                "there may be several values.",
            )
    return list(arguments)


def _is_refused(argument: inspect.Parameter) -> bool:
    """Whether Pydantic makes no JSON schema of an argument's type."""
    from pydantic import TypeAdapter

    if argument.annotation is argument.empty:
        return False
    try:
        TypeAdapter(argument.annotation).json_schema()
    except Exception:  # of several kinds, all Pydantic's own
        return True
    return False


def _tidy(node: Node) -> None:
    """Leave out titles, which Pydantic adds, and close objects."""
    node.pop("title", None)  # it repeats the name
    _close(node)


def json_of(value: object) -> Any:
    """A value as JSON can hold it: an object by its fields, any other value as a text."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, fallback=str)


def faults(error: Exception) -> str:
    """Why Pydantic, or a value's class, refuses the value, on one line."""
    if not hasattr(error, "errors"):  # not Pydantic's
        return str(error) or type(error).__name__
    messages = []
    for fault in error.errors():
        message = fault["msg"]
        place = ".".join(map(str, fault["loc"]))
        if place:
            message = f"{place}: {message}"
        messages.append(message)
    return "; ".join(messages)
