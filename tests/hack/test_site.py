"""The documentation site: complete, whole without network, and nothing of a page is lost on the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.site_search import QUESTIONS, first_answers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "hack/site"))
try:
    import comparison
    import pages
finally:
    sys.path.remove(str(ROOT / "hack/site"))


def test_the_site_has_all_that_its_pages_have_and_its_search_answers_newcomers():
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    command = [sys.executable, str(ROOT / "hack/site")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | nowhere, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    site = ROOT / "build/docs/site"
    listed = (site / "llms.txt").read_text()
    assert all(f"({page})" in listed for page in ("index.md", "reference/reasons/InsufficientGPU.md", "python.md"))
    assert "free some or request less" in (site / "reference/reasons/InsufficientGPU.html").read_text().lower()
    assert first_answers(site, QUESTIONS) == QUESTIONS


PAGE = """\
# Title

See [this](other.md#part).

```python module
x = 1
```

- a list
  - in a list

| a | b |
| -- | -- |
| 1 | 2 |
"""
WHOLE = """\
<article><h1 id="title">Title</h1><p>See <a href="other.html#part">this</a>.</p><pre><code>x = 1</code></pre>
<ul><li>a list</li></ul><table><tr><th>a</th></tr><tr><td>1</td></tr></table></article>"""
OTHER = '<article><h1 id="part">Other</h1></article>'


@pytest.mark.parametrize(
    ("lost", "instead", "problem"),
    [
        ("", "", None),
        ("<pre><code>x = 1</code></pre>", "<p>```python module</p>", "0 blocks of code in HTML, 1 in Markdown"),
        ('<h1 id="title">Title</h1>', "", "0 headings in HTML, 1 in Markdown"),
        ("<tr><td>1</td></tr>", "", "1 rows in HTML, 2 in Markdown"),
        ("#part", "#parts", "the link to other.html#parts leads nowhere"),
        ("other.html", "gone.html", "the link to gone.html#part leads nowhere"),
        ("<ul>", '<script src="https://example.com/x.js"></script><ul>', "loads https://example.com/x.js"),
    ],
)
def test_what_a_site_lost_is_named(tmp_path, lost, instead, problem):
    (tmp_path / "page.html").write_text(WHOLE.replace(lost, instead))
    (tmp_path / "other.html").write_text(OTHER)
    found = comparison.problems({"page.md": PAGE, "other.md": "# Other\n"}, tmp_path)
    assert found == ([f"page.html: {problem}"] if problem else [])


def test_a_page_that_is_not_there_is_named(tmp_path):
    assert comparison.problems({"a/README.md": PAGE}, tmp_path) == ["a/index.html: the site lacks the page"]


def test_commonmark_is_written_as_python_markdown_reads_it():
    text = pages.translated(PAGE)
    assert "```python\nx = 1\n```" in text
    assert "- a list\n    - in a list" in text
    code = "```yaml\na:\n  - b\n```\n"
    assert pages.translated(code) == code


def test_links_lead_to_pages_of_the_site_and_a_dead_one_is_an_error():
    shown = set()

    def linked(text):
        return pages.linked("docs/sweeps.md", text, ROOT, shown)

    assert linked("[a](../examples/sweep.yaml), [b\nc](reference/lm.md#x)") == (
        "[a](examples/sweep.yaml.md), [b\nc](reference/lm.md#x)"
    )
    assert shown == {"examples/sweep.yaml"}
    assert linked("[a](../CHANGELOG.md) [b](../operator/torchyard)") == "[a](changelog.md) b"
    assert linked("```\n[a](gone.md)\n```\n") == "```\n[a](gone.md)\n```\n"
    with pytest.raises(ValueError, match=r"docs/sweeps\.md: the link to gone\.md leads nowhere"):
        linked("[a](gone.md)")
