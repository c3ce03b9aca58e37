"""What a process of the trainers says when it ends, as an error with one sentence and its fix."""

import pytest

from torchyard.client.errors import FAILED
from torchyard.client.trainers import refusal

ABSENT = "trainers are not installed here", "pip install 'torchyard[trainers]'", FAILED


@pytest.mark.parametrize(
    ("said", "code", "shown"),
    [
        ("torchyard_trainers: a: 3 lost; 2 odd; copy it\n", 65, ("a: 3 lost; 2 odd", "copy it", 65)),
        ("W01 of a library\ntorchyard_trainers: a is\n  wrong; write b\n", 64, ("a is wrong", "write b", 64)),
        ("torchyard_trainers: no fix is known\n", 64, ("no fix is known", "", 64)),
        ("torchyard_trainers: a: No module named 'x'; install it", 64, ("a: No module named 'x'", "install it", 64)),
        ("python: No module named torchyard_trainers", 1, ABSENT),
        ("Traceback ...\nModuleNotFoundError: No module named 'torch'\n", 1, ABSENT),
        ("Traceback ...\nKeyError: 'a'\n", 1, ("KeyError: 'a'", "", 1)),
        ("", -9, ("a process of the trainers was ended by SIGKILL", "check whether memory ran out", FAILED)),
    ],
)
def test_the_last_words_of_the_trainers_are_a_sentence_and_its_fix(said, code, shown):
    error = refusal(said, code)
    assert (error.sentence, error.fix, error.code) == shown
