"""Compare the site with its pages: what a renderer drops, it drops silently."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

KINDS = {"heading_open": "headings", "table_open": "tables", "tr_open": "rows", "fence": "blocks of code"}
LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """What a page of the site holds and refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self._depth = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element of the article, and keep its anchor and addresses."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.anchors.add(values["id"])
        self._depth += tag == "article"
        if self._depth:
            self.counts["headings"] += bool(re.fullmatch("h[1-6]", tag))
            self.counts["tables"] += tag == "table"
            self.counts["rows"] += tag == "tr"
            self.counts["blocks of code"] += tag == "pre"
            if tag == "a" and "href" in values:
                self.links.append(values["href"])
        if tag == "link" and values.get("rel") not in {"stylesheet", "icon", "preload"}:
            return  # names the address of a page, loads nothing
        self.loaded += [value for name, value in values.items() if (tag, name) in LOADS]

    def handle_endtag(self, tag: str) -> None:
        """Leave the article."""
        self._depth -= tag == "article"


def problems(pages: Mapping[str, str], site: Path) -> list[str]:
    """Return what the site lacks, loads from elsewhere, or links to in vain; a line for each.

    Args:
        pages: the Markdown of each page, by its path.
        site: folder of the HTML.
    """
    html = {
        path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }
    wrong = []
    for path, text in pages.items():
        name = html_of(path)
        if name not in html:
            wrong.append(f"{name}: the site lacks the page")
            continue
        actual, expected = html[name].counts, markdown_counts(text)
        wrong += [
            f"{name}: {actual[kind]} {kind} in HTML, {expected[kind]} in Markdown"
            for kind in KINDS.values()
            if actual[kind] != expected[kind]
        ]
    for name, page in html.items():
        wrong += [f"{name}: loads {address}" for address in page.loaded if urlsplit(address).netloc]
        wrong += [f"{name}: the link to {link} leads nowhere" for link in broken(name, page.links, html, site)]
    return wrong


def markdown_counts(text: str) -> Counter[str]:
    """Return how many headings, tables, rows and blocks of code a text of CommonMark has."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return Counter(KINDS[token.type] for token in tokens if token.type in KINDS)


def html_of(name: str) -> str:
    """Return the path of the HTML of a page, by that of its Markdown."""
    folder, _, file = name.rpartition("/")
    stem = "index" if file in {"README.md", "index.md"} else file.removesuffix(".md")
    return f"{folder}/{stem}.html".lstrip("/")


def broken(name: str, links: list[str], html: dict[str, Page], site: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere within the site."""
    for link in links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (site / name).parent / unquote(parts.path) if parts.path else site / name
        file = (target / "index.html" if target.is_dir() else target).resolve()
        page = html.get(file.relative_to(site.resolve()).as_posix()) if file.is_relative_to(site.resolve()) else None
        if not file.exists() or (parts.fragment and page is not None and unquote(parts.fragment) not in page.anchors):
            yield link
