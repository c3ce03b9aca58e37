# Our own wheel, in an environment that holds nothing else: laid over one with packages, it is a layer of kilobytes.
set -eu
cd /build/src
export SOURCE_DATE_EPOCH=315532800
python3 -m hatchling build --target wheel --directory /build/wheels
python3 -m venv --without-pip /opt/torchyard
uv pip install --quiet --no-cache --no-index --no-deps --python /opt/torchyard/bin/python /build/wheels/*.whl
# When the wheel was built, which uv notes.
rm /opt/torchyard/lib/python3.*/site-packages/torchyard-*.dist-info/uv_cache.json
sed -i '/uv_cache\.json/d' /opt/torchyard/lib/python3.*/site-packages/torchyard-*.dist-info/RECORD
mkdir /agent
PYTHONPATH=/build/src/agent:$PYTHONPATH python3 -m torchyard_agent.build /agent/torchyard-agent.pyz
chmod 0555 /agent/torchyard-agent.pyz
touch --date=@315532800 /agent/torchyard-agent.pyz
exec sh /build/finish.sh
