"""The recipe of a rule, which is a page of Markdown, as a part of an HTML page: paragraphs, lists and code."""

from __future__ import annotations

import re

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer

from ..transforms.rule import Rule
from .recipe import recipe

_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def recipe_html(rule: Rule) -> Markup:
    """What a person writes where a rule cannot; empty where nothing is known."""
    prose_and_code = _FENCED.split(recipe(rule))
    parts = [_code(part) if number % 2 else _prose(part) for number, part in enumerate(prose_and_code)]
    return Markup("").join(parts)


def _code(text: str) -> Markup:
    shown = highlight(text.rstrip("\n"), PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return Markup('<pre class="code">{}</pre>').format(Markup(shown))


def _prose(text: str) -> Markup:
    paragraphs = (part.strip() for part in text.split("\n\n"))
    return Markup("").join(Markup("<p>{}</p>").format(_with_code(part)) for part in paragraphs if part)


def _with_code(text: str) -> Markup:
    pieces = text.replace("\n", " ").split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece) for number, piece in enumerate(pieces)
    )
