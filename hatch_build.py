"""Build the package: the README for the index page, and the compiled loops.

On the index page there is no folder beside the README, so links and pictures need an address. The address of the public
repository stands in pyproject.toml, and is empty until there is one. Until then links to files become plain words, and
pictures are left out.

The C sources of `torch_lapeig/native` are compiled by the C compiler of the machine (``CC``, or ``cc``). Where there
is none, or it fails, the package is pure Python and says so: it is slower, and gives the same answers.
`python hatch_build.py` compiles them into the folder where the package stands, and
`python hatch_build.py FILE [FLAG ...]` to another file with more flags, which ``TORCH_LAPEIG_COMPILED=FILE`` loads.
``TORCH_LAPEIG_WHEEL`` names the platform of a wheel in `TARGETS`, for which ziglang, a cross-compiler from the package
index, compiles on any machine; "any" is a wheel without loops.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # as a program it needs no package
    BuildHookInterface = MetadataHookInterface = object

PICTURE, LINK = r"!\[([^\]]*)\]\((?!\w+:)([^)]+)\)", r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)"
FOLDER = "torch_lapeig/native"
# Platforms of wheels, on which torch runs: the target of the cross-compiler, and how libraries are called there.
TARGETS = {
    "manylinux_2_28_x86_64": ("x86_64-linux-gnu.2.28", ".so"),
    "manylinux_2_28_aarch64": ("aarch64-linux-gnu.2.28", ".so"),
    "macosx_11_0_arm64": ("aarch64-macos.11.0", ".dylib"),
    "win_amd64": ("x86_64-windows-gnu", ".dll"),
}
ENDING = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
LIBRARY = f"{FOLDER}/kernels{ENDING}"
SOURCE = "kernels.c"  # which includes the others
COMPILING = "Compiling the loops, some 20 seconds"
# Sums may be reordered. Nothing else of -ffast-math: NaN and infinity count, and the processor's mode is left alone.
REORDERED = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno", "-freciprocal-math")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", *REORDERED)


def for_index_page(readme: str, address: str) -> str:
    """Return the text of a README with absolute links and pictures; without an address links become words."""
    picture, link = (rf"![\1]({address}/raw/main/\2)", rf"[\1]({address}/blob/main/\2)") if address else ("", r"\1")
    return re.sub(LINK, link, re.sub(PICTURE, picture, readme))


class IndexPage(MetadataHookInterface):
    """Set what the index page shows."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README, and the address where there is one."""
        readme, address = (Path(self.root) / "README.md").read_text(encoding="utf-8"), self.config["address"]
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index_page(readme, address)}
        if address:
            metadata["urls"] = {"Source": address, "Changelog": f"{address}/blob/main/CHANGELOG.md"}


def declared(folder: Path) -> str:
    """Return what the headers declare for Python, as rows of a table in C: name, size or value, and fields.

    A structure's fields are types and names, as in ``int32_t* crow, Rows_double rows``; a number has none.
    """
    texts = ((folder / name).read_text(encoding="utf-8") for name in ("tasks.h", "kernels.h"))
    tasks, others = (re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL) for text in texts)
    typed = (re.sub(r"NAME\((\w+)\)", rf"\1_{real}", tasks).replace("REAL", real) for real in ("float", "double"))
    rows = [f'{{"{name}",{name},0}}' for name in re.findall(r"^#define (\w+) +-?\d+\s*$", others, re.MULTILINE)]
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", "".join([*typed, others]), re.DOTALL):
        declarations = (line.replace("const ", "").split(maxsplit=1) for line in body.split(";")[:-1])
        fields = (f"{kind} {field.strip()}" for kind, names in declarations for field in names.split(","))
        rows.append(f'{{"{name}",sizeof({name}),"{", ".join(fields).replace(" *", "* ")}"}}')
    return ",".join(rows)


def compiled(root: Path, library: Path | None = None, flags: tuple[str, ...] = ()) -> str | None:
    """Compile the loops into the package, or to a file. Return None on success, else the reason and what to do."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if sys.platform == "win32":
        failure: str | None = "they are not compiled on Windows, where a wheel of win_amd64 has them"
        return f"torch_lapeig has no compiled loops, and is slower without: {failure}"
    if (failure := _failure(root, compiler, library or root / LIBRARY, flags)) is None:
        return None
    advice = "install a C compiler, as by `apt install gcc libc6-dev` or `xcode-select --install`, and again"
    return f"torch_lapeig has no compiled loops, and is slower without: {failure}; {advice}"


def _failure(root: Path, compiler: list[str], library: Path, flags: tuple[str, ...] = ()) -> str | None:
    """Compile the loops to a file, which is left as it was if that fails. Return None on success, else the reason."""
    if not shutil.which(compiler[0]):
        return f"there is no {compiler[0]}"
    text = b"".join(source.read_bytes() for source in sorted((root / FOLDER).glob("*.[ch]")))
    digest = hashlib.sha256(text).hexdigest()  # the package compares it when it loads the loops
    table = f'-DSOURCE="{digest}"', f"-DDECLARED={declared(root / FOLDER)}"
    made = library.with_suffix(f".{os.getpid()}")
    # Some compilers cannot make code for several processors, and GCC 12 for Arm fails at -O3.
    for more in ((), ("-DPLAIN",), ("-DPLAIN", "-O2")):
        options = [*FLAGS, *flags, *more, *table, "-o", str(made)]
        command = [*compiler, *options, str(root / FOLDER / SOURCE), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            made.replace(library)
            return None
    first = (line for line in done.stderr.splitlines() if "error" in line)  # the others say where it stands
    return next(first, done.stderr.strip() or f"{compiler[0]} failed")


def tag_of_this_machine() -> str:
    """Return the platform of code that this machine compiles; Python's own may be for several kinds of processors."""
    from packaging.tags import platform_tags

    *_, last = tags = [*platform_tags()]
    return last if sys.platform == "linux" else tags[0]  # the others promise an older C library


class Loops(BuildHookInterface):
    """Put the compiled loops into a wheel, which then fits one kind of machine only."""

    def dependencies(self) -> list[str]:
        """Return what is needed to build."""
        return ["ziglang"] if os.environ.get("TORCH_LAPEIG_WHEEL") in TARGETS else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, for a wheel and for an editable installation."""
        platform, root = os.environ.get("TORCH_LAPEIG_WHEEL"), Path(self.root)
        if self.target_name != "wheel" or platform == "any":
            return
        self.app.display_info(COMPILING)
        if platform is None:
            if (failure := compiled(root)) is not None:
                self.app.display_warning(failure)
                return
            platform = tag_of_this_machine()
            build_data["artifacts"].append(f"/{LIBRARY}")
        else:
            target, ending = TARGETS[platform]
            library = Path(self.directory) / f"kernels-{platform}{ending}"
            library.parent.mkdir(parents=True, exist_ok=True)
            if failure := _failure(root, [sys.executable, "-m", "ziglang", "cc", "-target", target, "-s"], library):
                raise RuntimeError(f"no loops for {platform}: {failure}")
            build_data["force_include"][str(library)] = f"{FOLDER}/kernels{ending}"
        build_data.update(pure_python=False, tag=f"py3-none-{platform}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the library that lay aside."""
        for library in Path(self.directory).glob("kernels*"):
            library.unlink()


if __name__ == "__main__":
    print(COMPILING, flush=True)
    sys.exit(compiled(Path(__file__).parent, *map(Path, sys.argv[1:2]), flags=tuple(sys.argv[2:])))
