"""``python scripts/pages [NAME ...]``: print generated parts of the site, all of them without a name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import GENERATED

for name in sys.argv[1:] or GENERATED:
    print(f"<!-- {name} -->\n{GENERATED[name]()}\n")
