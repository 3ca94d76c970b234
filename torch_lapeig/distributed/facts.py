"""What each rank says of what it was asked for, in words, and where ranks differ."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from torch import nn

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function or object, another one in each process


def in_words(name: str, value: Any) -> dict[str, str]:
    """Return a fact as text; of a module or an object of options its class, and a fact for each of its attributes."""
    if isinstance(value, nn.Module):
        given = inspect.signature(type(value)).parameters
        parts = {part: getattr(value, part) for part in ("training", *given) if hasattr(value, part)}
        parts |= dict(value.named_children())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        return {name: ADDRESS.sub("", str(value))}
    words = {name: type(value).__name__}
    for part, inner in parts.items():
        words |= in_words(f"{name}.{part}", inner)
    return words


def difference(said: list[Any]) -> str:
    """Return what ranks have said that does not go together."""
    failed = [f"rank {rank}: {words['error']}" for rank, words in enumerate(said) if words["error"]]
    if failed:
        return f"{len(failed)} of {len(said)} ranks refused what they were given; {'; '.join(failed[:3])}"
    for name in dict.fromkeys(name for words in said for name in words["facts"]):
        given = [words["facts"].get(name, "nothing") for words in said]
        if len(set(given)) > 1:
            each = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(given[:8]))
            return f"{name} must be the same on all ranks, got {each}"
    return "ranks do not agree"
