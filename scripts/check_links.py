"""``python scripts/check_links.py out/site``: does every link of the site lead somewhere? Without a network.

Links within the site must name a file that is there, and an anchor that this file has. Pictures and scripts must be
files of the site, so that nothing is fetched from elsewhere, and pictures must have alternative text. Addresses of
other sites must be addresses. Silent if all is well.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a page loads when it is opened; links that are followed may lead elsewhere.
LOADED = {
    ("img", "src"),
    ("script", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "srcset"),
    ("video", "src"),
}
#: Relations of ``link`` that load nothing.
NOT_LOADED = {"canonical", "index", "search", "next", "prev", "author", "copyright", "alternate"}


class Page(HTMLParser):
    """Links and anchors of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[tuple[str, bool]] = []
        self.wordless: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        self.anchors.update(values[k] for k in ("id", "name") if k in values)
        if tag == "img" and not values.get("alt", "").strip():
            self.wordless.append(values.get("src", ""))
        for key in ("href", "src", "srcset"):
            if key in values:
                loaded = (tag, key) in LOADED and values.get("rel") not in NOT_LOADED
                # a set has several pictures, each followed by the resolution that it is for
                sources = (
                    [s.split()[0] for s in values[key].split(",") if s.strip()] if key == "srcset" else [values[key]]
                )
                self.links += [(source, loaded) for source in sources]


@cache
def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def fault(source: Path, root: Path, link: str, loaded: bool) -> str | None:
    """What is wrong with a link on the page ``source``, or ``None``."""
    parts = urlsplit(link)
    if parts.scheme in ("data", "javascript"):
        return None
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "no address"
    if parts.scheme or parts.netloc:
        if loaded:
            return "the page loads it from another site"
        good = parts.scheme in ("http", "https") and re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?", parts.netloc)
        return None if good else "no address of a site"
    target = (source.parent / unquote(parts.path)).resolve() if parts.path else source
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(root) or not target.is_file():
        return "there is no such file"
    if target.suffix == ".html" and unquote(parts.fragment) not in page(target).anchors:
        return f"{target.name} has no anchor {parts.fragment!r}"
    return None


def faults(root: Path) -> list[str]:
    """All that is wrong, a line each."""
    root, found = root.resolve(), []
    for source in sorted(root.rglob("*.html")):
        for link, loaded in dict.fromkeys(page(source).links):
            if what := fault(source, root, link, loaded):
                found.append(f"{source.relative_to(root)}: {link}: {what}")
        found += [f"{source.relative_to(root)}: {picture}: no alternative text" for picture in page(source).wordless]
    return found


def main() -> int:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "index.html").is_file():
        print("check_links: name the folder of a built site, such as out/site.", file=sys.stderr)
        return 2
    found = faults(Path(sys.argv[1]))
    for line in found:
        print(f"check_links: {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
