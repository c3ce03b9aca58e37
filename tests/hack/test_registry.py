"""The registry of the test bed is a real one: it keeps blobs by digest, and asks for a user where it has some."""

import hashlib
import json
import urllib.error
import urllib.request

import pytest
from tests.support.registry import needs_registry, registry

# bcrypt of "secret"
USERS = "ada:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"


def request(address, method, path, content=None, **headers):
    """One call, without redirects or proxies."""
    url = path if path.startswith("http") else f"http://{address}{path}"
    asked = urllib.request.Request(url, content, {"Content-Type": "application/octet-stream", **headers}, method=method)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=10)


@needs_registry
def test_a_registry_keeps_what_was_pushed_by_digest_and_refuses_another_content(tmp_path):
    with registry(tmp_path) as address:
        place = request(address, "POST", "/v2/some/thing/blobs/uploads/").headers["Location"]
        digest = f"sha256:{hashlib.sha256(b'content').hexdigest()}"
        with pytest.raises(urllib.error.HTTPError) as refused:
            request(address, "PUT", f"{place}&digest={digest}", b"another")
        assert json.load(refused.value)["errors"][0]["code"] == "DIGEST_INVALID"
        place = request(address, "POST", "/v2/some/thing/blobs/uploads/").headers["Location"]
        request(address, "PUT", f"{place}&digest={digest}", b"content")
        assert request(address, "GET", f"/v2/some/thing/blobs/{digest}").read() == b"content"


@needs_registry
def test_a_registry_with_users_asks_for_them(tmp_path):
    (tmp_path / "users").write_text(USERS)
    with registry(tmp_path, "--htpasswd", tmp_path / "users") as address:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            request(address, "GET", "/v2/")
        basic = "Basic YWRhOnNlY3JldA=="
        assert request(address, "GET", "/v2/", Authorization=basic).status == 200
