"""Exported web pages in headless Chromium, whose software device has WebGPU and WebGL 2."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

#: One software device for the page's frames and for both interfaces.
FLAGS = [
    "--no-sandbox", "--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader",
    "--use-vulkan=swiftshader", "--use-angle=swiftshader", "--ignore-gpu-blocklist",
]  # fmt: skip
#: For a page: take a graphics interface away.
WITHOUT = {
    "webgpu": "delete Navigator.prototype.gpu;",
    "webgl2": "const get = HTMLCanvasElement.prototype.getContext; HTMLCanvasElement.prototype.getContext = "
    "function (kind, ...more) { return kind === 'webgl2' ? null : get.call(this, kind, ...more); };",
}


class Elements(HTMLParser):
    """What a browser sees of a page: names of elements, attributes, and texts of scripts and styles."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.names, self.attributes, self.texts, self._in = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        self._in = tag

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in in ("script", "style"):
            self.texts.append(data)


def page_data(path: Path) -> dict:
    """What a page has of its field."""
    return json.loads(Elements(path.read_text("utf-8")).texts[1])


class Browser:
    """Opens pages. ``missing`` says why it cannot."""

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=chromium(), args=FLAGS)

    @staticmethod
    def missing() -> str:
        if importlib.util.find_spec("playwright") is None:
            return "playwright is not installed (make test-export)"
        return "" if chromium() else "there is no chromium"

    def open(
        self,
        path: Path,
        api: str = "",
        width: int = 0,
        height: int = 0,
        without: Any = (),
        first: str = "",
        **options: Any,
    ) -> Page:
        """The page at ``path``, after the script ``first``; with a width and height, the picture has that size."""
        context = self.browser.new_context(**({"viewport": {"width": 900, "height": 700}} | options))
        for interface in without:
            context.add_init_script(WITHOUT[interface])
        context.add_init_script(first)
        return Page(context, path, api, width, height)

    def close(self) -> None:
        self.browser.close()
        self.playwright.stop()


class Page:
    """An open page. ``noted`` is what it asked the network for, its errors, and dialogs."""

    def __init__(self, context: Any, path: Path, api: str, width: int, height: int):
        self.page, self.noted = context.new_page(), []
        own = path.as_uri() + (f"#{api}" if api else "")
        self.page.on("request", lambda r: self.noted.append(f"request {r.url}") if r.url != path.as_uri() else None)
        self.page.on("pageerror", lambda e: self.noted.append(f"error {e}"))
        self.page.on("console", lambda m: self.noted.append(f"console {m.text}") if m.type == "error" else None)
        self.page.on("dialog", lambda d: (self.noted.append(f"dialog {d.message}"), d.dismiss()))
        self.page.goto(own)
        if width:
            self.page.evaluate(
                "([w, h]) => { document.querySelector('main').style.cssText = "
                "`position: fixed; inset: 0 auto auto 0; width: ${w}px; height: ${h}px; border: none`; }",
                [width, height],
            )

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *error: Any) -> None:
        self.page.context.close()

    def wait(self) -> str:
        """The page when its picture is the best one, or there will be none: ``"done"`` or ``"failed"``."""
        # the size of the picture may only now be noticed
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        ends = "html[data-state=done], html[data-state=failed]"
        self.page.wait_for_selector(ends, state="attached", timeout=200_000)
        return self.page.evaluate("document.documentElement.dataset.state")

    def text(self, name: str) -> str:
        return self.page.evaluate("(name) => document.getElementById(name).textContent", name)

    def picture(self) -> np.ndarray:
        """What the screen shows of it, in [0, 1], shape ``(height, width, 3)``."""
        from PIL import Image

        assert self.wait() == "done", self.text("message")
        self.page.evaluate("document.activeElement.blur()")  # which has a ring around it
        raw = self.page.locator("#picture").screenshot()
        return np.asarray(Image.open(io.BytesIO(raw)).convert("RGB")).astype(np.float32) / 255


def chromium() -> str | None:
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
