"""PPO of a vision-language model really learns: preset tiny, a Qwen2-VL of 0.22 million parameters, from pictures.

A policy that acts at random reaches the can in a fifth of the episodes. After 40,960 steps of the environments half of
the greedy ones must succeed, after 61,440 steps 85 %.
"""


def test_a_policy_that_sees_a_can_learns_to_reach_it_with_every_seed(learn):
    found = learn("vlm", logEvery=80, evalEvery=20)
    for summary in found:
        assert summary["environmentSteps"] == 61_440
        assert summary["successRateUntrained"] < 0.35, found
        (halfway,) = (line["successRate"] for line in summary["curve"] if line["step"] == 160)
        assert halfway >= 0.5, found
        assert summary["successRate"] >= 0.85, found
