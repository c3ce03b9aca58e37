"""A loss of pairs for objective.yaml, from log-probabilities of answers: tensors with a value for each pair."""


def ipo(chosen, rejected, reference_chosen, reference_rejected, _chosen_tokens, _rejected_tokens, beta):
    """Return the loss of IPO (Azar 2023): each pair should gain 1 / (2 beta) over the reference, and no more."""
    gain = (chosen - reference_chosen) - (rejected - reference_rejected)
    return (gain - 1 / (2 * beta)).square()
