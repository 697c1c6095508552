"""Fields as source code of other languages: ``export``."""

from .export import Exported, export

__all__ = ["Exported", "export"]
