"""A reward of completions that call tools."""


async def turns(completions, transcript, answer, **columns):
    return [float(each.count("assistant:")) for each in transcript]
