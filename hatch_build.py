"""The README as the index page shows it: there is no folder beside it, so links and pictures need an address.

The address of the public repository is one constant, in pyproject.toml, and empty until there is one. So long links to
files are words, and pictures are left out, rather than broken.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE, LINK = r"!\[([^\]]*)\]\((?!\w+:)([^)]+)\)", r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)"


def for_index_page(readme: str, address: str) -> str:
    """The text of a README with absolute links and pictures, or without those to files where there is no address."""
    picture, link = (rf"![\1]({address}/raw/main/\2)", rf"[\1]({address}/blob/main/\2)") if address else ("", r"\1")
    return re.sub(LINK, link, re.sub(PICTURE, picture, readme))


class IndexPage(MetadataHookInterface):
    """Sets what the index page shows."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the README, and the address where there is one."""
        readme, address = (Path(self.root) / "README.md").read_text(encoding="utf-8"), self.config["address"]
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index_page(readme, address)}
        if address:
            metadata["urls"] = {"Source": address, "Changelog": f"{address}/blob/main/CHANGELOG.md"}
