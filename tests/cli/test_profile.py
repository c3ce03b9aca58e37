"""`torchyard profile`: whom it refuses; that it works is shown by a run that is traced while it trains."""

import pytest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cvrp", "trace", "--steps", 0], "ask for 1 to 100"),
        (["cvrp", "trace", "--steps", 101], "ask for 1 to 100"),
        (["cvrp", "flame"], "invalid choice"),
        (["cvrp", "trace"], "the run 'cvrp' does not run; `torchyard resume cvrp` goes on with it"),
        (["cvpr", "memory"], "did you mean 'cvrp'?"),
    ],
)
def test_a_wish_that_cannot_be_granted(torchyard, words, says):
    torchyard.record("cvrp")
    refused = torchyard("profile", *words)
    assert (refused.returncode, says in refused.stderr) == (64, True), refused.stderr
