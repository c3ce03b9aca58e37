# /opt/torchyard: a virtual environment with every package of /build/packages.lock. An argument is a script that takes away
# what this image does not use.
set -eu
python3 -m venv --without-pip /opt/torchyard
uv pip sync --system-certs --quiet --no-cache --link-mode copy --python /opt/torchyard/bin/python \
  --require-hashes /build/packages.lock
[ $# -eq 0 ] || sh "$1"
exec sh /build/finish.sh
