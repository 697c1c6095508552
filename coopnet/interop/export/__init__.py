"""Fields as source code of other languages: ``export``."""

from .export import Exported, export
from .page.document import View

__all__ = ["Exported", "View", "export"]
