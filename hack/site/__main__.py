"""Build the documentation site in `build/docs/site`, without network: `make docs`.

The pages are those of `docs/`, which people also read as Markdown, and pages that are generated from the code. Zensical
reads a copy of them: Python-Markdown knows other fences and lists than the CommonMark that the pages are written in,
and a link that leaves `docs/` has no page there.
"""

import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from comparison import html_of, problems
from generated import generated_pages
from navigation import navigation, paths
from pages import source_pages, translated
from search import SEPARATOR, arrange

from torchyard.version import __version__

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/docs"
DESCRIPTION = "PyTorch training jobs on Kubernetes, and on one machine without it"


def main() -> int:
    """Build the site, compare it with its pages, and return the exit code."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pages = source_pages(ROOT) | generated_pages(ROOT)
    write_pages(pages)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if code := subprocess.run(command, cwd=BUILD, check=False).returncode:
        return code
    arrange(BUILD / "site/search.json", [html_of(path) for path in paths(navigation(pages))])
    wrong = problems(pages, BUILD / "site")
    shutil.copytree(BUILD / "pages", BUILD / "site", dirs_exist_ok=True)
    (BUILD / "site/llms.txt").write_text(llms_text(pages), encoding="utf-8")
    print("\n".join(wrong) if wrong else f"{BUILD / 'site/index.html'}: {len(pages)} pages")
    return 1 if wrong else 0


def write_pages(pages: Mapping[str, str]) -> None:
    """Write the Markdown that Zensical reads, with its settings, below `BUILD`."""
    for path, text in pages.items():
        target = BUILD / "pages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(translated(text), encoding="utf-8")
    shutil.copytree(ROOT / "docs/images", BUILD / "pages/images")
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(configuration(pages), sort_keys=False), encoding="utf-8")


def llms_text(pages: Mapping[str, str]) -> str:
    """Return the list of all pages for language models (llmstxt.org); the Markdown of each lies beside its HTML."""
    lines = ["# TorchYard", "", f"> {DESCRIPTION}"]
    for section in navigation(pages):
        for title, entries in section.items():
            lines += ["", f"## {title}", ""]
            lines += [f"- [{title_of(pages[path])}]({path})" for path in paths(entries)]
    return "\n".join(lines) + "\n"


def title_of(text: str) -> str:
    """Return the first heading of a page, without marks of code."""
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ").replace("`", "")


def configuration(pages: Collection[str]) -> dict[str, Any]:
    """Return the settings of a site with these pages. Nothing is loaded from elsewhere: no fonts, no scripts."""
    return {
        "site_name": f"TorchYard {__version__}",
        "site_description": DESCRIPTION,
        "docs_dir": "pages",
        "site_dir": "site",
        "nav": navigation(pages),
        "theme": {
            "font": False,
            "features": ["content.code.copy", "navigation.sections", "navigation.top", "search.highlight"],
            "palette": [
                {"scheme": scheme, "toggle": {"icon": "lucide/sun-moon", "name": f"Switch to {other}"}}
                for scheme, other in (("default", "dark"), ("slate", "light"))
            ],
        },
        "use_directory_urls": False,
        "plugins": [{"search": {"separator": SEPARATOR}}],
        "markdown_extensions": [
            "tables",
            {"toc": {"permalink": True}},
            "pymdownx.highlight",
            "pymdownx.superfences",
            "pymdownx.inlinehilite",
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
