"""Pydantic's list of errors as the one line that people read: key, value, remedy."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from openclaw_tasks.config.expand import dotted
from openclaw_tasks.config.text import one_line, show, suggest


class ConflictError(ValueError):
    """Raised by validators whose message names the keys, the values and the remedy itself."""


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of `error` in one line, with the number of further ones.

    A key that is unknown comes first: often it is the key that then is missing, misspelt.
    """
    problems = error.errors(include_url=False)
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return one_line(_describe_one(problems[0], model)) + others


def _describe_one(problem: ErrorDetails, model: type[BaseModel]) -> str:
    location = problem["loc"]
    key = dotted(location)
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConflictError):
        return str(cause)
    if problem["type"] == "extra_forbidden":
        section = _section(model, location[:-1])
        place = f" in {dotted(location[:-1])}" if len(location) > 1 else ""
        known = [name for name in section.model_fields if name != "folder"] if section else []
        remedy = suggest(str(location[-1]), known)
        return f"unknown key {show(location[-1])}{place} (value {show(problem['input'])}); {remedy}"
    example = _example(model, location)
    if problem["type"] == "missing":
        return f"the key {key} is missing; add it{example}"
    value = f"{key or 'the job'}={show(problem['input'])}"
    if isinstance(cause, ValueError):
        return f"{value}: {cause}"
    return f"{value}: {_expected(problem)}; change it{example}"


def _expected(problem: ErrorDetails) -> str:
    if problem["type"] == "string_pattern_mismatch":
        return "not of the form it takes"
    if problem["type"] in ("dict_type", "model_type", "model_attributes_type"):
        return "should be a mapping of keys"
    return problem["msg"].removeprefix("Input ")


def _example(model: type[BaseModel], location: tuple[str | int, ...]) -> str:
    names = tuple(part for part in location if isinstance(part, str))
    section = _section(model, names[:-1])
    field = section.model_fields.get(names[-1]) if section and names else None
    value = _example_value(field)
    return "" if value is None else f", for example {names[-1]}: {value}"


def _example_value(field: FieldInfo | None) -> Any:
    return field.examples[0] if field is not None and field.examples else None


def _section(model: type[BaseModel], location: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model at `location`; None where there is none."""
    section = model
    for part in location:
        field = section.model_fields.get(part) if isinstance(part, str) else None
        annotation = field.annotation if field is not None else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        section = annotation
    return section
