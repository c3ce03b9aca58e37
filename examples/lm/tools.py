"""A tool and a reward for tools.yaml."""

import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def calculate(expression: str) -> str:
    """Calculate with whole numbers.

    Args:
        expression: Numbers with +, - and *, such as 12 + 3 * 4.
    """

    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        return int(ast.literal_eval(node))

    return str(value(ast.parse(expression[:100], mode="eval").body))


async def uses_tools(completions, transcript, **_columns):
    """Return 1 for each completion of which a tool is a part, else 0."""
    return [float(len(whole) > len(last)) for last, whole in zip(completions, transcript, strict=True)]
