# /image: what an image gets, folders included, so that not even their times differ between two builds of the same packages.
# Compiled now, for the root file system is read-only later; the digest in a .pyc stands for its source, nobody looks at times.
# Of the Kubernetes client we load the configuration only; the bytecode of its models would be a third of the operator's
# packages. Some packages carry files for a newer Python than the base's, which cannot be compiled and are never imported.
set -eu
find /opt/torchyard -name __pycache__ -prune -exec rm -rf {} +
PYTHONHASHSEED=0 python3 -m compileall -qq -j 0 --invalidation-mode unchecked-hash \
  -x '/kubernetes/(aio|client/(api|models))/' /opt/torchyard/lib || true
mkdir -p /image/opt
mv /opt/torchyard /image/opt/
find /image -exec touch --no-dereference --date=@315532800 {} +
