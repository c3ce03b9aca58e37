"""What the operator may do: the least that works, each right with its reason in docs/installation.md."""

import itertools
import re

import pytest
from tests.support.charts import NAMESPACE, ROOT, needs_helm, one, rendered

from torchyard.cli.commands.cluster_checks import OPERATORS
from torchyard.kubernetes.claim_gpus import RIGHTS as CLAIM_RIGHTS
from torchyard.schedulers.backends import BACKENDS, switched_on
from torchyard.schedulers.kueue import Kueue

pytestmark = needs_helm

MOST_RIGHTS = 32
# Rights that lead to others: what is in Secrets, into running containers, or to new rights.
FORBIDDEN_RESOURCES = re.compile(r"secrets|pods/(exec|attach|portforward|proxy|ephemeralcontainers)|serviceaccounts|\*")
FORBIDDEN_VERBS = {"*", "escalate", "bind", "impersonate", "deletecollection"}
ALLOWED_EVERYWHERE = {
    ("torchyard.dev", "trainingjobs", "get"),
    ("torchyard.dev", "trainingjobs", "list"),
    ("torchyard.dev", "trainingjobs", "watch"),
    ("torchyard.dev", "trainingjobs", "create"),
    ("torchyard.dev", "trainingjobs", "patch"),
    ("torchyard.dev", "trainingjobs", "delete"),
    ("torchyard.dev", "trainingsweeps", "list"),
    ("torchyard.dev", "trainingsweeps", "watch"),
    ("torchyard.dev", "trainingsweeps", "delete"),
    ("torchyard.dev", "trainingsweeps/status", "update"),
    ("torchyard.dev", "trainingjobs/status", "update"),
    ("", "pods", "get"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods", "create"),
    ("", "pods", "delete"),
    ("", "services", "get"),
    ("", "services", "create"),
    ("networking.k8s.io", "networkpolicies", "create"),
    ("networking.k8s.io", "networkpolicies", "patch"),
    ("", "events", "list"),
    ("", "events", "create"),
    ("", "nodes", "get"),
    ("", "nodes", "list"),
    ("torchyard.dev", "trainingprofiles", "list"),
    ("torchyard.dev", "trainingprofiles", "watch"),
    ("authentication.k8s.io", "tokenreviews", "create"),
}
WITH_METRICS = {("authorization.k8s.io", "subjectaccessreviews", "create")}
CLUSTER_TEMPLATES = ("resource.k8s.io", "resourceclaimtemplates", "get")
METRICS = {"metrics": {"enabled": True}}
ALLOWED_AT_HOME = {
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get"),
    ("coordination.k8s.io", "leases", "update"),
    ("", "pods", "list"),
    ("", "pods", "patch"),
}


def rights(role):
    return {
        (group, resource, verb)
        for rule in role["rules"]
        if "resources" in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_doctor_asks_for_rights_that_the_chart_gives():
    """What it asks for in every namespace is in the rules; it would call each healthy installation broken."""
    everywhere, _, _ = operators(rendered())
    asked = {(group, resource, verb) for verb, group, resource in OPERATORS}
    assert asked <= everywhere


def operator_arguments(documents):
    return one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]


def operators(documents):
    """The rights of the operator: cluster-wide, in its own namespace, in the namespaces of jobs."""
    everywhere = rights(one(documents, "ClusterRole", "torchyard"))
    roles = {
        (role["metadata"]["namespace"], role["metadata"]["name"]): rights(role)
        for role in documents
        if role["kind"] == "Role"
    }
    return everywhere, roles.pop((NAMESPACE, "torchyard")), roles


def test_the_operator_may_do_this_and_nothing_else():
    everywhere, at_home, elsewhere = operators(rendered())
    assert everywhere == ALLOWED_EVERYWHERE
    assert at_home == ALLOWED_AT_HOME
    assert not elsewhere
    assert len(everywhere) + len(at_home) <= MOST_RIGHTS


@pytest.mark.parametrize(
    "values", [METRICS, *({"metrics": {part: {"enabled": True}}} for part in ("serviceMonitor", "dashboard"))]
)
def test_only_an_operator_that_serves_metrics_asks_who_may_read_them(values):
    documents = rendered(values)
    everywhere, at_home, _ = operators(documents)
    assert (everywhere, at_home) == (ALLOWED_EVERYWHERE | WITH_METRICS, ALLOWED_AT_HOME)
    reader = one(documents, "ClusterRole", "torchyard-metrics-reader")
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    names = [each["metadata"]["name"] for each in rendered() if each["kind"] == "ClusterRole"]
    assert reader["metadata"]["name"] not in names


def test_the_page_in_the_cluster_has_no_right_and_no_token():
    documents = rendered({"page": {"enabled": True}})
    assert operators(documents) == operators(rendered())
    page = {each["kind"]: each for each in documents if each["metadata"]["name"] == "torchyard-page"}
    assert set(page) == {"ServiceAccount", "Service", "NetworkPolicy", "Deployment"}
    pod = page["Deployment"]["spec"]["template"]["spec"]
    assert page["ServiceAccount"]["automountServiceAccountToken"] is pod["automountServiceAccountToken"] is False
    assert not [each for each in documents if "torchyard-page" in str(each.get("subjects"))]
    assert not [each for each in pod["volumes"] if "projected" in each]
    (served,) = pod["containers"]
    assert "ca" not in {each["name"] for each in served["volumeMounts"]}  # of the certificate's container alone
    assert (served["securityContext"]["readOnlyRootFilesystem"], pod["securityContext"]["runAsNonRoot"]) == (True, True)


def test_only_named_peers_reach_the_page_and_it_reaches_the_api_server_alone():
    peers = [{"namespaceSelector": {"matchLabels": {"name": "login"}}}]
    for values, ingress in (({}, []), ({"from": peers}, [{"ports": [{"port": "page"}], "from": peers}])):
        documents = rendered({"page": {"enabled": True, **values}}, show="templates/page.yaml")
        policy = one(documents, "NetworkPolicy")["spec"]
        assert (policy["policyTypes"], policy["ingress"]) == (["Ingress", "Egress"], ingress)
        assert policy["egress"] == [{"ports": [{"protocol": "TCP", "port": port} for port in (443, 6443, 8443)]}]


def test_without_the_ca_of_the_chart_the_page_needs_a_certificate():
    values = {"page": {"enabled": True}, "tls": {"existingSecret": "mine"}}
    with pytest.raises(ValueError, match=r"page\.tls\.existingSecret"):
        rendered(values)
    values["page"]["tls"] = {"existingSecret": "page"}
    pod = one(rendered(values, show="templates/page.yaml"), "Deployment")["spec"]["template"]["spec"]
    assert "initContainers" not in pod


def test_notifications_add_a_volume_and_no_right():
    documents = rendered({"notifications": {"secret": "hook"}})
    assert operators(documents) == operators(rendered())
    pod = one(documents, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "notifications", "secret": {"secretName": "hook", "defaultMode": 0o440}} in pod["volumes"]
    assert not any("hook" in arg for arg in operator_arguments(documents))


def test_prometheus_sends_its_token_only_to_the_operator_that_the_ca_vouches_for():
    values = {"metrics": {"serviceMonitor": {"enabled": True}}}
    for tls, secret in (({}, {"name": "torchyard-ca", "key": "tls.crt"}), ("mine", {"name": "mine", "key": "ca.crt"})):
        documents = rendered({**values, **({"tls": {"existingSecret": tls}} if tls else {})})
        (endpoint,) = one(documents, "ServiceMonitor")["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"] == {"serverName": f"torchyard-intake.{NAMESPACE}.svc", "ca": {"secret": secret}}


def test_with_watched_namespaces_it_has_no_rights_on_jobs_elsewhere():
    everywhere, at_home, elsewhere = operators(rendered({"watchNamespaces": ["red", "blue"]}))
    assert {resource for _, resource, _ in everywhere} == {"nodes", "tokenreviews", "trainingprofiles"}
    assert set(elsewhere) == {("red", "torchyard-jobs"), ("blue", "torchyard-jobs")}
    for found in elsewhere.values():
        assert found | everywhere == ALLOWED_EVERYWHERE
    assert at_home == ALLOWED_AT_HOME


@pytest.mark.parametrize(
    "names",
    [each for size in range(len(BACKENDS) + 1) for each in itertools.combinations(BACKENDS, size)],
    ids="+".join,
)
def test_a_scheduler_adds_its_rights_only_where_it_is_on(names):
    values = {"schedulers": dict.fromkeys(names, True)}
    wanted = {
        (right.group, right.resource, verb) for name in names for right in BACKENDS[name].rights for verb in right.verbs
    }
    documents = rendered(values)
    everywhere, at_home, elsewhere = operators(documents)
    assert (everywhere, at_home, elsewhere) == (ALLOWED_EVERYWHERE | wanted, ALLOWED_AT_HOME, {})
    args = operator_arguments(documents)
    given = [arg.partition("=")[2].split(",") for arg in args if arg.startswith("--schedulers=")]
    assert [[each.partition("=")[0] for each in named] for named in given] == ([list(names)] if names else [])
    for named in given:
        switched_on(named)


@pytest.mark.parametrize("names", [("kueue",), tuple(BACKENDS)], ids="+".join)
def test_the_priority_boost_adds_no_right_and_needs_kueue(names):
    boost = {"kueue": {"priorityBoost": True}}
    without, _, _ = operators(rendered({"schedulers": dict.fromkeys(names, True)}))
    documents = rendered({"schedulers": dict.fromkeys(names, True), **boost})
    assert operators(documents)[0] == without
    (given,) = (arg for arg in operator_arguments(documents) if arg.startswith("--schedulers="))
    assert switched_on(given.partition("=")[2].split(","))[0] == Kueue(priority_boost=True)
    with pytest.raises(ValueError, match=r"set schedulers\.kueue to true"):
        rendered({"schedulers": {name: name != "kueue" for name in names}, **boost})


@pytest.mark.parametrize("kueue", [False, True])
@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("count", [False, True])
def test_each_combination_of_values_adds_exactly_its_rights(kueue, boost, count):
    values = {
        "schedulers": {"kueue": kueue},
        "kueue": {"priorityBoost": boost and kueue},
        "resourceClaims": {"countGpus": count},
    }
    granted = (
        *(BACKENDS["kueue"].rights if kueue else ()),
        *(CLAIM_RIGHTS if count else ()),
    )
    documents = rendered(values)
    added = {(right.group, right.resource, verb) for right in granted for verb in right.verbs}
    assert operators(documents) == (ALLOWED_EVERYWHERE | added, ALLOWED_AT_HOME, {})
    assert ("--count-claimed-gpus=true" in operator_arguments(documents)) == count
    everywhere, _, elsewhere = operators(rendered(values | {"watchNamespaces": ["red"]}))
    assert (CLUSTER_TEMPLATES in elsewhere[("red", "torchyard-jobs")]) == count
    assert CLUSTER_TEMPLATES not in everywhere


def test_rights_of_schedulers_on_namespaces_stay_in_the_watched_ones():
    values = {"schedulers": dict.fromkeys(BACKENDS, True), "watchNamespaces": ["red"]}
    everywhere, _, elsewhere = operators(rendered(values))
    rights = [right for scheduler in BACKENDS.values() for right in scheduler.rights]
    for right in rights:
        holder = everywhere if right.everywhere else elsewhere[("red", "torchyard-jobs")]
        assert {(right.group, right.resource, verb) for verb in right.verbs} <= holder
    kept_in = {(right.group, right.resource) for right in rights if not right.everywhere}
    assert not kept_in & {(group, resource) for group, resource, _ in everywhere}


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["red"]}, METRICS], ids=["all", "namespaced", "metrics"])
def test_no_role_has_a_right_that_leads_to_others(values):
    for role in rendered(values):
        if role["kind"] in {"Role", "ClusterRole"}:
            for _, resource, verb in rights(role):
                assert not FORBIDDEN_RESOURCES.fullmatch(resource), role["metadata"]["name"]
                allowed = {"deletecollection"} if role["metadata"]["name"] == "torchyard-edit" else set()
                assert verb not in FORBIDDEN_VERBS - allowed, role["metadata"]["name"]


def test_rights_are_bound_to_the_operator_alone():
    account = {"kind": "ServiceAccount", "name": "torchyard", "namespace": NAMESPACE}
    for document in rendered({"watchNamespaces": ["red"], **METRICS}):
        if document["kind"].endswith("RoleBinding") or document["kind"].endswith("ClusterRoleBinding"):
            assert document["subjects"] == [account]
    assert one(rendered(), "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "torchyard"


def test_users_who_edit_a_namespace_may_never_write_a_status():
    edit = rights(one(rendered(), "ClusterRole", "torchyard-edit"))
    assert {resource for _, resource, _ in edit} == {"trainingjobs", "trainingjobs/scale", "trainingsweeps"}


def test_every_right_has_its_reason_in_the_documentation():
    text = (ROOT / "docs/installation.md").read_text().partition("\n## Rights")[2]
    rows = {
        (resource, verb)
        for resource, verbs in re.findall(r"^\| `([^`]+)` \| ((?:`[a-z]+`(?:, )?)+) \| \w", text, re.MULTILINE)
        for verb in re.findall(r"`([a-z]+)`", verbs)
    }
    assert rows == {(resource, verb) for _, resource, verb in ALLOWED_EVERYWHERE | ALLOWED_AT_HOME | WITH_METRICS}


def test_every_right_of_a_scheduler_is_in_the_documentation():
    text = (ROOT / "docs/schedulers.md").read_text().partition("\n## Rights")[2]
    rows = {
        (name, resource, verb)
        for name, resource, verbs in re.findall(
            r"^\| `([\w.]+)` \| `([^`]+)` \| ((?:`[a-z]+`(?:, )?)+) \|", text, re.MULTILINE
        )
        for verb in re.findall(r"`([a-z]+)`", verbs)
    }
    assert rows == {
        (name, f"{right.resource}.{right.group}".rstrip("."), verb)
        for name, granted in {
            **{name: each.rights for name, each in BACKENDS.items()},
            "resourceClaims.countGpus": CLAIM_RIGHTS,
        }.items()
        for right in granted
        for verb in right.verbs
    }
