"""Pages of the site that are files of the repository: one text, read on GitHub and here.

A mkdocs hook; ``make docs`` builds the site. Links are rewritten to where a file is in the site.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh-CN.md",
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.txt",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and the examples' pictures."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if page.endswith(".md"):
            text = re.sub(r"\]\(([^)#:]+)(#[^)]*)?\)", partial(_moved, folder=Path(source).parent), text)
        files.append(File.generated(config, page, content=text))
    for picture in sorted((ROOT / "examples" / "pictures").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def _moved(link: re.Match[str], *, folder: Path) -> str:
    """The link to where its target is in the site; what has no page there is named, not linked."""
    target = (ROOT / folder / link[1]).resolve().relative_to(ROOT).as_posix()
    if target in PAGES:
        place = PAGES[target]
    elif target.startswith("docs/"):
        place = target.removeprefix("docs/")
    elif target.startswith("examples/pictures/"):
        place = target.removeprefix("examples/")
    else:
        place = link[1]
    return f"]({place}{link[2] or ''})"
