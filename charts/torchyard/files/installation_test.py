"""What `helm test` runs in a pod: exits 0 if TorchYard serves, else says what does not."""
# ruff: noqa: INP001, T201, S310 -- a program of its own, which prints, and opens two URLs that it made itself

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 90


def resource_is_served() -> str:
    """Check that the API server serves TrainingJobs."""
    url = "https://kubernetes.default.svc/apis/torchyard.dev/v1alpha1"
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10, context=trust) as answer:
        names = {resource["name"] for resource in json.load(answer)["resources"]}
    missing = {"trainingjobs", "trainingjobs/status", "trainingjobs/scale"} - names
    if missing:
        raise ValueError(f"the API server does not serve {', '.join(sorted(missing))}")
    return "the API server serves TrainingJobs"


def leader_answers(host: str) -> str:
    """Pods reach the leader by its name, and its certificate is the one that they are configured to trust."""
    url = f"https://{host}:8443/v1/sync"
    trust = ssl.create_default_context(cafile="/tls/ca.crt")
    request = urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    if status != 401:
        raise ValueError(f"{url} answered {status} to a caller without a token, not 401")
    return f"the leader answers at {url}, and only to those with a token"


def eventually(what: str, check: Callable[..., str], *arguments: str) -> bool:
    """Try until a check passes; say how it ended."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            print("ok:", check(*arguments), flush=True)
        except (OSError, ValueError, KeyError) as error:
            if time.monotonic() > deadline:
                print(f"FAILED: {what}: {error}", flush=True)
                return False
            time.sleep(1)
        else:
            return True


if __name__ == "__main__":
    served = eventually("the TrainingJob resource", resource_is_served)
    answered = eventually("the leader's intake", leader_answers, sys.argv[1])
    sys.exit(not (served and answered))
