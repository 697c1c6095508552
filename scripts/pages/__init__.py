"""Parts of the site that are made from the code and from results of benchmarks.

``docs/conf.py`` asks for them by name, where a page says ```` ```{generated} layers ````. Each is Markdown, made anew
whenever the site is built; ``python scripts/pages`` prints one or all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from . import command_line, environment, layers, performance, web_pages

#: What a page can ask for, by name.
GENERATED: dict[str, Callable[[], str]] = {
    "layers": layers.table,
    "names_of_activations": layers.activations,
    "names_of_losses": layers.losses,
    "usage": command_line.usage,
    "commands": command_line.commands,
    "extras": environment.extras,
    "info": environment.info,
    "web_pages": web_pages.cards,
    **performance.PARTS,
}
