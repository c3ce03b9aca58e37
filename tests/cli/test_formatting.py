"""Foreign text and figures are fit for a terminal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.api.formatting import addressed, clean, clip
from torchyard.api.values import figure, measure, rate, size, span, three_digits


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ("plain text", "plain text"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07 back\x08 null\x00", "bell back null"),
        ("\x9b2Jc1", "2Jc1"),
        ("a\tb", "a\tb"),
        ("  0%\r 50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("text\u202egnp.exe", "textgnp.exe"),
        ("loss \u2207 0.1 \u00e9", "loss \u2207 0.1 \u00e9"),
    ],
)
def test_a_line_of_a_worker_cannot_steer_the_terminal(raw: str, read: str) -> None:
    assert clean(raw) == read


@pytest.mark.parametrize(
    ("seconds", "read"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (60, "1m"),
        (250, "4m10s"),
        (3600, "1h"),
        (11520, "3h12m"),
        (446400, "5d4h"),
        (-3, "0s"),
    ],
)
def test_a_span_has_at_most_two_units(seconds: float, read: str) -> None:
    assert span(seconds) == read


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1.93, "1.930"),
        (0.5, "0.500"),
        (123.456, "123.5"),
        (12345.678, "12,346"),
        (3, "3"),
        (1000000, "1,000,000"),
        (1e-7, "1e-07"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (-0.25, "-0.250"),
        (0.0123456, "0.0123"),
        (0.00205, "0.00205"),
        (0.0, "0"),
    ],
)
def test_a_figure_has_four_digits_that_matter(value: float, read: str) -> None:
    assert figure(value) == read


def test_bytes_are_binary() -> None:
    assert [size(n) for n in (10, 2048, 5 * 1024**2, 3 * 1024**4)] == ["10 B", "2 KiB", "5 MiB", "3 TiB"]


@pytest.mark.parametrize(
    ("per_second", "read"),
    [
        (0.352, "0.352 steps/s"),
        (46.17, "46.2 steps/s"),
        (120.0, "120 steps/s"),
        (6893.0, "6.89k steps/s"),
        (999.9, "1k steps/s"),
        (2.5e6, "2.5M steps/s"),
        (0.0, "0 steps/s"),
        (float("nan"), "nan steps/s"),
    ],
)
def test_a_rate_has_three_digits_and_a_unit(per_second: float, read: str) -> None:
    assert rate(per_second, "steps") == read


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("memoryPeakBytes", 500_322_000.0, "477 MiB"),
        ("gapPercent", -13.3191, "-13.3 %"),
        ("dataWaitShare", 0.00478, "0.478 %"),
        ("stepSeconds", 0.25, "0.25 s"),
        ("cost", 4.89451, "4.895"),
    ],
)
def test_a_metric_has_the_unit_of_its_name(name: str, value: float, read: str) -> None:
    assert measure(name, value) == read


def test_a_clipped_text_reports_it() -> None:
    assert clip("abcdef", 4) == "abc…"
    assert clip("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    ("text", "flags", "read"),
    [
        ("see `torchyard logs`", "", "see `torchyard logs cvrp`"),
        ("see `torchyard logs`", " -n team", "see `torchyard logs cvrp -n team`"),
        ("`torchyard stacks` shows", " -n team --context c", "`torchyard stacks cvrp -n team --context c` shows"),
        ("see `kubectl describe pvc`", " -n team", "see `kubectl describe pvc -n team`"),
        ("see `kubectl logs -c agent` of the pod", " -n team", "see `kubectl logs -n team -c agent` of the pod"),
        ("see `kubectl describe node`", " -n team", "see `kubectl describe node`"),
        ("`torchyard validate` names every fault", " -n team", "`torchyard validate` names every fault"),
    ],
)
def test_a_command_in_a_sentence_can_be_typed_as_it_is(text: str, flags: str, read: str) -> None:
    assert addressed(text, "cvrp", flags) == read


@given(st.floats())
def test_a_number_of_any_size_is_short(value: float) -> None:
    texts = [figure(value), three_digits(value), size(value), rate(value, "steps")]
    texts += [span(value)] if math.isfinite(value) else []
    texts += [measure(name, value) for name in ("memoryBytes", "gapPercent", "busyShare", "stepSeconds", "loss")]
    assert max(map(len, texts)) <= 24, texts
