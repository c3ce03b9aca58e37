# What the build needs beside python3, by digest, into /build/tools: uv, hatchling, and pynvml for the agent's zipapp.
set -eu
if [ -f /build/ca.crt ]; then
  mkdir -p /etc/ssl/certs
  cat /build/ca.crt >>/etc/ssl/certs/ca-certificates.crt
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
  apt-get update
  apt-get install --yes --no-install-recommends python3-pip
fi
[ ! -f /build/ca.crt ] || export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --root-user-action ignore \
  --require-hashes --target /build/tools --requirement /build/build.lock
