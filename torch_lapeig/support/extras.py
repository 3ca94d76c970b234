"""Advice on libraries that only some calls need."""

import re
from importlib import metadata


def how_to_install(extra: str) -> str:
    """Return the command that installs the libraries of an extra: the same beside a clone and beside a wheel."""
    try:
        needed = metadata.requires("torch-lapeig") or []
    except metadata.PackageNotFoundError:  # a folder on the path, without an installation
        return f'pip install ".[{extra}]" in the clone'
    own = [line.partition(";")[0].strip() for line in needed if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return " ".join(["pip install", *(f'"{requirement}"' for requirement in own)])
