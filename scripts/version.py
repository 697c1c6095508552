"""Sets the version wherever it stands: for a release, and for the development after it.

    python scripts/version.py 0.2.0         # the changelog gets today's date; the page on installation names the index
    python scripts/version.py 0.3.0.dev0    # the changelog gets a new part for what is to come

``make release VERSION=0.2.0`` calls it. It writes ``coopnet/version.py``, ``CITATION.cff``, ``CHANGELOG.md`` and
``docs/installation.md``, and nothing if one of them is not as expected.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = re.compile(r"^## \[Unreleased\]: [\d.]+$", re.M)
#: What the page on installation says before the first upload, and after it.
FROM_A_CLONE = re.compile(r"There is no release on .*?```sh\n.*?\n", re.S)
FROM_THE_INDEX = '```sh\npip install "coopnet[cli]"\n'


def replaced(pattern: str | re.Pattern[str], text: str, new: str) -> str:
    """``text`` with the first match replaced; raises ``ValueError`` if there is none."""
    found, times = re.subn(pattern, lambda _: new, text, count=1)
    if not times:
        raise ValueError(f"version.py: nothing matches {pattern!r}.")
    return found


def changed(read: dict[str, str], version: str, today: datetime.date) -> dict[str, str]:
    """The files that have ``version``, by name, from their text so far."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", version):
        raise ValueError(f"version.py: {version!r} is no version such as 0.2.0 or 0.3.0.dev0.")
    new, changes = dict(read), read["CHANGELOG.md"]
    new["coopnet/version.py"] = replaced(r'"\d[^"]*"', read["coopnet/version.py"], f'"{version}"')
    new["CITATION.cff"] = replaced(r"(?m)^version: .*$", read["CITATION.cff"], f"version: {version}")
    if ".dev" in version:
        begun = f"## [Unreleased]: {version.partition('.dev')[0]}\n\n## "
        new["CHANGELOG.md"] = changes if UNRELEASED.search(changes) else replaced(r"(?m)^## ", changes, begun)
        return new
    new["CHANGELOG.md"] = replaced(UNRELEASED, changes, f"## {version} ({today})")
    page = read["docs/installation.md"]
    if FROM_A_CLONE.search(page):  # the first release
        new["docs/installation.md"] = replaced(FROM_A_CLONE, page, FROM_THE_INDEX)
    return new


def main(version: str) -> None:
    names = ("coopnet/version.py", "CITATION.cff", "CHANGELOG.md", "docs/installation.md")
    read = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    for name, text in changed(read, version, datetime.datetime.now(datetime.timezone.utc).date()).items():
        (ROOT / name).write_text(text, encoding="utf-8")
    print(f"version {version} in {', '.join(names)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
