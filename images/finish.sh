# Compile everything now, for the root file system is read-only later, and give every file the same time, so that the same
# packages make the same layer. The digest in a .pyc stands for its source: nobody looks at times again.
set -eu
find /opt/torchyard -name __pycache__ -prune -exec rm -rf {} +
PYTHONHASHSEED=0 python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/torchyard/lib
find /opt/torchyard -exec touch --no-dereference --date=@315532800 {} +
