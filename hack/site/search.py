"""What the search of the site reads: questions in whole sentences, and the pages in the order of their readers.

The engine of the site finds a section only if it has every word of the question. Sections that have these words in
their heading come first; among equal ones, the order of the index decides.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Words of a question that no answer has to contain, as a lower-case pattern each.
IGNORED = (
    "an?|and|any|are|at|be|by|can|could|do|does|for|from|get|have|how|i|if|in|into|is|it|its|me|my|of|on|or|our|should|"
    "so|some|that|the|their|there|this|to|use|using|want|we|what|when|where|which|why|will|with|would|you|your"
)
_EITHER_CASE = "|".join(f"[{word[0]}{word[0].upper()}]{word[1:]}" for word in IGNORED.split("|"))
SEPARATOR = rf"""[\s\-_,:;!?=\[\]()\\"`/]+|\.(?!\d)|\b(?:{_EITHER_CASE})\b"""
"""A regular expression of JavaScript for what lies between two words, for pages and questions."""
ARCHIVES = ("notebook/", "decisions/", "404.html")
"""Pages that are listed, and not searched: measurements and reasons of the past use the words of every question."""


def arrange(index: Path, order: Sequence[str]) -> None:
    """Write the index again, without archives, in an order of pages.

    Args:
        index: `search.json` of the site.
        order: the HTML of each page, the most helpful first.
    """
    content = json.loads(index.read_text(encoding="utf-8"))
    places = {page: place for place, page in enumerate(order)}
    items: list[dict[str, Any]] = [each for each in content["items"] if not each["location"].startswith(ARCHIVES)]
    for each in items:
        if each["path"][-1:] == [each["title"]]:  # counts as a second heading with the same words
            each["path"].pop()
    items.sort(key=lambda each: places.get(each["location"].partition("#")[0], len(places)))
    index.write_text(json.dumps(content | {"items": items}, ensure_ascii=False), encoding="utf-8")
