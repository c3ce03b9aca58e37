"""Rules between fields of the spec: one table, judged here in Python and by the API server in CEL.

A rule holds for a *scope*: the spec (""), a section (`checkpoint.interval`) or each item of a list (`env[]`).
Sections that are absent break no rule. What concerns one field alone (type, range, pattern) is in the models.
"""

from torchyard.api.validation.rule import Rule
from torchyard.api.validation.rules_placement import PLACEMENT
from torchyard.api.validation.rules_program import PROGRAM
from torchyard.api.validation.rules_reliability import DURATIONS, RELIABILITY
from torchyard.api.validation.rules_size import SIZE
from torchyard.api.validation.rules_training import TRAINING

RULES: tuple[Rule, ...] = (*SIZE, *PROGRAM, *PLACEMENT, *TRAINING, *RELIABILITY, *DURATIONS)
