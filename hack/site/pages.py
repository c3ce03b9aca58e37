"""The pages that people write, as the site has them: their paths, their links, and the dialect of Python-Markdown."""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

# Files outside of `docs/` that are pages of the site, too.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    "charts/torchyard/README.md": "chart.md",
}
# Shown as a page with their content, so that a link to an example leads to it.
SHOWN = {".yaml": "yaml", ".py": "python", ".lua": "lua"}
FENCED = re.compile(r"(?ms)^( *```.*?^ *``` *$)")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)|(<img [^>]*?src=\")([^\"]+)(\")")
NESTED = re.compile(r"(?m)^( +)(?=(?:[-*]|\d+\.) )")


def source_pages(root: Path) -> dict[str, str]:
    """Return the text of every page that is written by hand, and of the files that pages link to, by path in the site.

    Links are those of the site.

    Raises:
        ValueError: a page links to a file that does not exist.
    """
    files = {path.relative_to(root).as_posix(): path for path in sorted((root / "docs").rglob("*.md"))}
    files |= {name: root / name for name in ELSEWHERE}
    pages: dict[str, str] = {}
    shown: set[str] = set()
    for name, path in files.items():
        pages[page_of(name)] = linked(name, path.read_text(encoding="utf-8"), root, shown)
    for name in sorted(shown):
        language = SHOWN[posixpath.splitext(name)[1]]
        text = (root / name).read_text(encoding="utf-8").rstrip()
        pages[page_of(name)] = f"# `{name}`\n\n```{language}\n{text}\n```\n"
    return pages


def page_of(name: str) -> str:
    """Return the path in the site of the page made from a file, by the file's path in the repository."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    return name.removeprefix("docs/") if name.endswith(".md") else f"{name.removeprefix('docs/')}.md"


def linked(name: str, text: str, root: Path, shown: set[str]) -> str:
    """Return the text of a file with links between pages of the site; a link to a file without a page becomes its text.

    Args:
        name: path of the file in the repository.
        text: its Markdown.
        root: of the repository.
        shown: receives the files that get a page because this one links to them.

    Raises:
        ValueError: a link leads nowhere.
    """
    here = posixpath.dirname(page_of(name))

    def replaced(match: re.Match[str]) -> str:
        label, target = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if not (root / file).exists():
            raise ValueError(f"{name}: the link to {target} leads nowhere")
        if file.startswith("docs/images/"):
            page = file.removeprefix("docs/")
        elif file.endswith(".md"):
            page = page_of(file)
        elif posixpath.splitext(file)[1] in SHOWN and (root / file).is_file():
            shown.add(file)
            page = page_of(file)
        else:
            return label.strip("![]")
        relative = posixpath.relpath(page, here or ".") + (f"#{anchor}" if anchor else "")
        return f"{label}({relative})" if match[1] is not None else f"{label}{relative}{match[5]}"

    return outside_of_fences(text, lambda prose: LINK.sub(replaced, prose))


def translated(text: str) -> str:
    """Return CommonMark as Python-Markdown reads it: one word behind a fence, four spaces for each level of a list."""
    one_word = re.sub(r"(?m)^( *`{3,}\w+)[ \t][^\n`]*$", r"\1", text)
    return outside_of_fences(one_word, lambda prose: NESTED.sub(r"\1\1", prose))


def outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    """Return a text in which `change` was applied to all that is not a block of code."""
    parts = FENCED.split(text)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))
