"""For every test: hypothesis never judges by the clock, since a busy machine is no defect."""

from hypothesis import settings

settings.register_profile("torchyard", deadline=None)
settings.load_profile("torchyard")
