"""HTML that cannot be broken by what it says: text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

#: Elements without content, which have no end tag.
_VOID = frozenset(("br", "col", "hr", "img", "link", "meta"))


class Markup(str):
    """HTML made by ``element``; every other string is text."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | int | bool | None) -> Markup:
    """An element with its content, of which text is escaped, and with attributes that are not
    None; ``class_`` is ``class``, and ``aria_label`` is ``aria-label``.

    >>> element("p", "1 < 2 & ", element("b", "3"), class_="a")
    '<p class="a">1 &lt; 2 &amp; <b>3</b></p>'
    >>> element("img", src="data:,", alt='"x"')
    '<img src="data:," alt="&quot;x&quot;">'
    """
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{escape(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if name in _VOID else f"{start}{join(content)}</{name}>")


def join(content: Iterable[str], between: str = "") -> Markup:
    """One after the other, text escaped.

    >>> join(["a", "b<"], " & ")
    'a &amp; b&lt;'
    """
    return Markup(_safe(between).join(map(_safe, content)))


def _safe(text: str) -> str:
    return text if isinstance(text, Markup) else escape(text, quote=False)
