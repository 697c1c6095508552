"""Progress bars, by tqdm."""

from __future__ import annotations

from typing import Any


def progress_bar(name: str, **options: Any) -> Any:
    """A bar that counts steps, for the function ``name``."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        cure = "run pip install 'coopnet[train]', or pass progress=False"
        raise ImportError(f"{name}: progress=True needs tqdm; {cure}.") from None
    return tqdm(unit="step", dynamic_ncols=True, **options)
