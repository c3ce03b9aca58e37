"""What an installation with the documented extras can run, and which extra is named where a library is missing."""

import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement

from torchyard.cli.main import explained

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPERATOR = "torchyard.cli.commands.operator"


def test_each_command_for_clusters_finds_its_libraries_with_the_extra_cluster():
    """Also those that it imports late. Optuna is looked for before it is imported, see `require_libraries`."""
    wanted = [*PROJECT["dependencies"], *EXTRAS["cluster"], *EXTRAS["sweep"], *EXTRAS["top"]]
    installed = {Requirement(each).name.lower() for each in wanted}
    graph = grimp.build_graph("torchyard", include_external_packages=True)
    of_import = packages_distributions()
    missing = {}
    for module in graph.find_matching_modules("torchyard.cli.commands.*") | graph.find_matching_modules(
        "torchyard.client.**"
    ):
        tops = {each.partition(".")[0] for each in graph.find_upstream_modules(module)}
        names = {of_import.get(top, [top])[0].lower() for top in tops - sys.stdlib_module_names - {"torchyard"}}
        if module != OPERATOR and names - installed:
            missing[module] = names - installed
    assert not missing
    assert "kopf" in {each.partition(".")[0] for each in graph.find_upstream_modules(OPERATOR)}, "the graph is whole"


@pytest.mark.parametrize(("library", "extra"), [("kubernetes", "cluster"), ("optuna", "sweep"), ("kopf", "operator")])
def test_a_library_that_is_not_installed_is_named_with_the_extra_that_has_it(library: str, extra: str) -> None:
    refusal = explained(ModuleNotFoundError(f"No module named '{library}.client'", name=f"{library}.client"))
    assert str(refusal.sentence) == f"this needs {library}, which is not installed"
    assert refusal.fix == f"pip install 'torchyard[{extra}]'"
