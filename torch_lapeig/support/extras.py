"""Advice on libraries that only some calls need."""

import re
from importlib import import_module, metadata
from typing import Any


def needed(library: str, why: str, extra: str) -> Any:
    """Return a library; raise ImportError with the reason why it is needed, and the command that installs it."""
    try:
        return import_module(library)
    except ImportError as error:
        raise ImportError(f"{why}: {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """Return the command that installs the libraries of an extra: the same beside a clone and beside a wheel."""
    try:
        needed = metadata.requires("torch-lapeig") or []
    except metadata.PackageNotFoundError:  # a folder on the path, without an installation
        return f'pip install ".[{extra}]" in the clone'
    own = [line.partition(";")[0].strip() for line in needed if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return " ".join(["pip install", *(f'"{requirement}"' for requirement in own)])
