"""Opens every page of the built site in headless Chromium, measures it, and takes pictures to be looked at.

    python scripts/look_at_site.py out/site out/look [--all] [--only NAME ...]

At desktop (1280) and phone (390) width: is a page wider than the screen? Do its scripts report errors, does it load
anything from elsewhere, are all pictures there? Does the search find things, from files and from a server? Prints what
is wrong and ends with exit code 1 if anything is. Pictures, light and dark, are taken of the pages in ``PICTURES``, or
of all.

Needs ``pip install playwright`` and a Chromium: ``playwright install chromium`` or the system's package.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
#: Pages of which pictures are taken.
PICTURES = (
    "index", "installation", "ten_minutes", "faq", "limits", "architecture", "encodings", "gradients", "mitsuba",
    "neural_path", "coming_from/index", "coming_from/drjit_nn", "performance/index", "performance/networks",
    "performance/whole_jobs", "performance/gradients",
    "reference/index", "reference/fields", "reference/layers", "reference/training", "reference/command_line",
    "gallery/index",
)  # fmt: skip
LONGEST = 6000  #: pixels of a picture's height; the rest of a longer page is left out
QUERIES = {"dropout": "dropout", "NeuralField": "reference/fields", "libnvoptix": "installation"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


def serve(root: Path) -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def measure(page: Any, url: str, width: int) -> list[str]:
    """What is wrong with a page at this width."""
    said: list[str] = []
    outside: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "http://127.0.0.1")):
            outside.append(request.url)

    def told(message: Any) -> None:
        if message.type == "error":
            said.append(message.text)

    page.on("request", asked)
    page.on("console", told)
    page.goto(url, wait_until="load")
    wide = page.evaluate("document.documentElement.scrollWidth")
    broken = page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
    page.remove_listener("request", asked)
    page.remove_listener("console", told)
    found = [f"is {wide} pixels wide on a screen of {width}"] if wide > width else []
    if wide > width:
        found.append("widest: " + page.evaluate(
            """w => [...document.querySelectorAll('body *')].filter(e => {
                 for (let p = e.parentElement; p; p = p.parentElement)
                   if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return false;
                 return e.getBoundingClientRect().right > w + 1})
                 .slice(0, 4).map(e => e.tagName + '.' + e.className).join(', ')""", width,
        ))  # fmt: skip
    found += [f"loads {u} from elsewhere" for u in outside]
    return found + [f"picture is missing: {u}" for u in broken] + [f"script says: {t}" for t in said]


def searches(page: Any, base: str) -> list[str]:
    """What the search does not find."""
    found = []
    for query, wanted in QUERIES.items():
        page.goto(f"{base}/search.html?q={query}")
        try:
            page.wait_for_selector("#search-results ul.search li a", timeout=10_000)
            page.wait_for_timeout(500)
        except Exception:
            found.append(f"search for {query!r} at {base[:8]} finds nothing")
            continue
        links = page.eval_on_selector_all("#search-results ul.search li a", "a => a.map(e => e.getAttribute('href'))")
        if not any(wanted in link for link in links):
            found.append(f"search for {query!r} at {base[:8]} finds {len(links)} pages, but not {wanted}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--all", action="store_true", help="pictures of all pages")
    parser.add_argument("--only", nargs="+", default=[], help="look at these pages alone")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    root = args.site.resolve()
    names = sorted(str(p.relative_to(root).with_suffix("")) for p in root.rglob("*.html"))
    names = [n for n in names if n in args.only] if args.only else names
    wrong: list[str] = []
    server = serve(root)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for label, (width, height) in WIDTHS.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page = context.new_page()
                for name in names:
                    taken = args.all or args.only or name in PICTURES
                    if scheme == "dark" and not taken:
                        continue
                    what = measure(page, f"file://{root}/{name}.html", width)
                    wrong += [f"{name}, {label}: {w}" for w in what if scheme == "light"]
                    if taken:
                        target = args.pictures / label / scheme / f"{name.replace('/', '-')}.png"
                        target.parent.mkdir(parents=True, exist_ok=True)
                        tall = min(page.evaluate("document.documentElement.scrollHeight"), LONGEST)
                        clip = {"x": 0, "y": 0, "width": width, "height": tall}
                        page.screenshot(path=target, clip=clip, full_page=True)
                context.close()
        if not args.only:
            page = browser.new_page()
            wrong += searches(page, f"file://{root}") + searches(page, f"http://127.0.0.1:{server.server_address[1]}")
        browser.close()
    server.shutdown()
    for line in wrong:
        print(f"look_at_site: {line}", file=sys.stderr)
    print(f"{len(names)} pages, {len(wrong)} faults; pictures in {args.pictures}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
