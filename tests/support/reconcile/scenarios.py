"""What tests of the plan do to a world, and look for in what was decided."""


def of(kind, decided):
    return [action for action in decided.actions if isinstance(action, kind)]


def condition(world, kind):
    return next(each for each in world.status.conditions if each.type == kind)


def fail(world, index=0, code=1, **failure):
    world.end_workers(world.at(index), code, **({"exception": "ValueError", "message": "boom"} | failure))


def recover(world, steps=0, *, save=False):
    """The next round opens and makes steps."""
    world.settle()
    world.now += 400
    world.start_pods()
    world.settle()
    world.start_pods()
    world.settle()
    if steps:
        world.advance_training(steps, save=save)
        world.settle()
    return world
