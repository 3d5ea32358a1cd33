"""All recipes."""

from __future__ import annotations

from .language import LANGUAGE
from .recipe import Recipe
from .tutorials import EXAMPLES
from .vision import VISION

RECIPES: tuple[Recipe, ...] = (*LANGUAGE, *EXAMPLES, *VISION)
