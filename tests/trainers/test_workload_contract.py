"""What a workload of a newcomer's own gives, and how it is refused: in one sentence, with the code of a wrong job."""

import json
import subprocess
import sys

import char_lm
import numpy as np
import pytest
import torch
from torch import nn

import torchyard_trainers
from torchyard_trainers import registry
from torchyard_trainers.core.config import Checkpoint, Config, Evaluation, Parallelism, Trainer
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.gradients import never_learned
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import set_learning_rate
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload
from torchyard_trainers.core.world import World

CPU = torch.device("cpu")


def made(**sections):
    return registry.build(Config(trainer=Trainer(name="char_lm:CharLm", params=sections.pop("params", {})), **sections))


def tried(work):
    """Call all that the loop calls, in its order."""
    model = work.build()
    work.blocks(model)
    work.optimizer(model)
    work.learning_rate(0)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    world = World(0, 1, 0, CPU, grouped=False)
    session = Session(Parallel("single", model, model), Precision("fp32", CPU, sharded=False), world, reporter, None)
    found = {"begin": work.begin(session)}
    found["loss"] = work.loss(session, MicroBatch(torch.arange(2), torch.ones(2)))
    found["after_step"] = work.after_step(session, work.total_steps, {})
    found["score"] = work.score(found["after_step"])
    work.state()
    found["summary"] = work.summary({"loss": 1.0})
    return found


def gives(value):
    return lambda *_: value


def loss(change):
    right = char_lm.CharLm.loss
    return lambda work, session, batch: change(right(work, session, batch))


class Stateful(nn.Linear):
    def get_extra_state(self):
        return {"calls": 1}


@pytest.mark.parametrize(
    ("method", "instead", "says"),
    [
        ("build", gives(None), "returned nothing (None); return the model, an nn.Module"),
        ("build", gives((nn.Linear(1, 1), 2)), "returned a tuple; return the model"),
        ("build", gives(nn.Linear(1, 1).requires_grad_(requires_grad=False)), "none of whose parameters takes a"),
        ("build", gives(nn.Identity()), "none of whose parameters takes a gradient; leave some to be learned"),
        ("build", lambda _: Stateful(1, 1), "has _extra_state, which is no tensor; a checkpoint holds tensors"),
        ("blocks", gives(None), "returned nothing (None); return a list of modules of the model, or []"),
        ("blocks", gives([nn.Linear(1, 1)]), "returned a list; return a list of modules of the model"),
        ("optimizer", gives(None), "return one torch.optim.Optimizer"),
        ("optimizer", lambda _, model: [model], "returned a Model; return one torch.optim.Optimizer"),
        ("optimizer", lambda _, parameters: torch.optim.SGD(parameters), "pass model.parameters() to the optimizer"),
        (
            "optimizer",
            lambda _, model: [torch.optim.SGD(model.parameters()), torch.optim.Adam(model.parameters())],
            "returned several optimizers of the same parameter; give each parameter to one optimizer",
        ),
        (
            "optimizer",
            lambda _, model: torch.optim.LBFGS(model.parameters()),
            "returned a LBFGS; return one torch.optim.Optimizer that",
        ),
        (
            "optimizer",
            lambda _, model: torch.optim.SGD([{"params": model.parameters()}, {"params": [], "lr": 0.5}]),
            "lr 0.001, 0.5, but",
        ),
        ("learning_rate", gives(None), "returned nothing (None); return one number"),
        ("begin", gives(None), "returned nothing (None); return a dict, {} if it is empty"),
        ("loss", gives(None), "returned nothing (None); return LossOutput(loss, {})"),
        ("loss", gives(torch.ones(())), "returned a tensor () of float32; return LossOutput(loss, {})"),
        ("loss", loss(lambda right: (right.loss, {})), "returned a tuple; return LossOutput(loss, {})"),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss.repeat(3), {})),
            "returned a tensor (3,) of float32 as loss; return one",
        ),
        ("loss", loss(lambda right: LossOutput(right.loss.item(), {})), "as loss; return one number, the sum over the"),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss.detach(), {})),
            "returned a loss that no parameter has a part in",
        ),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss, None)),
            "its statistics: returned nothing (None); return a",
        ),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss, {"right": 0.5})),
            "returned 0.5 as statistic 'right'; return",
        ),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss, {"loss": right.loss})),
            "returned 'loss', which the loop itself",
        ),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss + 3, {})),
            "returned 3 as the loss of samples whose weights are",
        ),
        (
            "loss",
            loss(lambda right: LossOutput(right.loss, {"right": right.loss * 0 + 0.5})),
            "returned 0.5 as right of samples whose weights are all 0; return sums over the samples",
        ),
        ("after_step", gives(None), "returned nothing (None); return a dict"),
        ("evaluate", gives(None), "returned nothing (None); return a dict"),
        ("evaluate", gives(0.5), "returned 0.5; return a dict"),
        ("evaluate", gives({"best": "good"}), "returned 'good' as 'best'; return one number by each name"),
        ("evaluate", gives({"eval": {"loss": 1.0}}), "returned a dict as 'eval'; return one number by each name"),
        ("evaluate", gives({"hits": torch.ones(2)}), "returned a tensor (2,) of float32 as 'hits'; return one number"),
        ("evaluate", gives({3: 1.0}), "returned 3 as the name of a metric; return text"),
        ("evaluate", gives({"step": 1}), "returned 'step', which the loop itself reports; name it evalStep"),
        ("score", gives("good"), "returned 'good'; return one number"),
        ("state", gives(None), "returned nothing (None); return a dict"),
        ("state", gives({"ema": {"steps": 3}}), "ema.steps is 3; return tensors, nested in dicts"),
        ("summary", gives(None), "returned nothing (None); return a dict"),
        ("summary", gives({"loss": 1.0}), "returned nothing (None) as text; return a sentence"),
        ("summary", gives({"text": "", "all": torch.ones(2)}), "cannot be written as JSON"),
    ],
)
def test_a_value_that_the_loop_cannot_use_is_rejected_where_it_is_returned(monkeypatch, method, instead, says):
    monkeypatch.setattr(char_lm.CharLm, method, instead)
    with pytest.raises(ConfigError, match=rf"^CharLm\.{method}: ") as refused:
        tried(made())
    assert says in str(refused.value)


def test_a_statistic_and_a_metric_of_the_evaluation_have_different_names(monkeypatch):
    monkeypatch.setattr(char_lm.CharLm, "loss", loss(lambda right: LossOutput(right.loss, {"accuracy": right.loss})))
    monkeypatch.setattr(char_lm.CharLm, "evaluate", gives({"accuracy": 0.5}))
    with pytest.raises(ConfigError) as refused:
        tried(made())
    says = "CharLm.evaluate: returned 'accuracy', which is also a statistic of loss; name one of them evalAccuracy, say"
    assert str(refused.value) == says


def test_checking_the_weights_changes_no_random_number_and_no_buffer(monkeypatch):
    """A checked workload trains with the same bits as the class itself."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, ids):
            self.passes += 1
            return self.weight * torch.rand(len(ids))

    def noisy(_, session, batch):
        return LossOutput((session.parallel.forward(batch.ids) * batch.weights).sum(), {})

    monkeypatch.setattr(char_lm.CharLm, "loss", noisy)
    model, world = Noisy(), World(0, 1, 0, CPU, grouped=False)
    session = Session(
        Parallel("single", model, model),
        Precision("fp32", CPU, sharded=False),
        world,
        Reporter(None, rank=0, local_rank=0, round_number=0),
        None,
    )
    batch = MicroBatch(torch.arange(4), torch.ones(4))
    torch.manual_seed(7)
    found = made().loss(session, batch).loss
    torch.manual_seed(7)
    assert torch.equal(found, torch.rand(4).sum())
    assert model.passes == 1


def test_the_public_names_import_no_torch():
    code = "import sys, torchyard_trainers; print('torch' in sys.modules, torchyard_trainers.read.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "read"]
    assert torchyard_trainers.Workload is Workload


def test_statistics_of_other_names_are_refused(monkeypatch):
    """They are summed up by their place."""
    names = iter(["without weights", "first", "second"])
    monkeypatch.setattr(char_lm.CharLm, "loss", loss(lambda right: LossOutput(right.loss, {next(names): right.loss})))
    work = made()
    tried(work)
    with pytest.raises(ConfigError, match=r"CharLm\.loss: returned the statistics second after first; return the same"):
        tried(work)


def test_numbers_of_torch_and_numpy_are_numbers(monkeypatch):
    """Of a tensor no checkpoint's record could be written, and a statistic with a gradient would keep its graph."""
    figures = {"evalLoss": torch.tensor(0.5), "hits": np.float32(0.25), "all": np.int64(3)}
    monkeypatch.setattr(char_lm.CharLm, "evaluate", gives(figures))
    monkeypatch.setattr(char_lm.CharLm, "score", lambda _, found: found["evalLoss"])
    monkeypatch.setattr(char_lm.CharLm, "loss", loss(lambda right: LossOutput(right.loss, {"again": right.loss})))
    found = tried(made())
    assert json.dumps(found["after_step"]) == '{"evalLoss": 0.5, "hits": 0.25, "all": 3.0}'
    assert found["score"] == 0.5
    assert found["loss"].loss.requires_grad
    assert not found["loss"].statistics["again"].requires_grad


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("total_steps", 8.0, "total_steps: 8.0 is not a whole number of at least 1"),
        ("global_batch", 0, "global_batch: 0 is not a whole number of at least 1"),
        ("log_every", 0, "log_every: 0 is not"),
        ("identity", None, "identity: returned nothing (None); return a dict"),
        ("identity", {"size": (2, 2)}, "identity: 'size' is a tuple; use text or a number"),
    ],
)
def test_attributes_of_a_workload_are_checked(monkeypatch, name, value, says):
    made_so = char_lm.CharLm.__init__
    monkeypatch.setattr(
        char_lm.CharLm, "__init__", lambda work, params: (made_so(work, params), setattr(work, name, value))[0]
    )
    with pytest.raises(ConfigError) as refused:
        made()
    assert str(refused.value).startswith(f"CharLm.{says}")


@pytest.mark.parametrize("name", ["build", "learning_rate", "loss"])
def test_a_method_that_a_workload_lacks_is_named_before_anything_runs(monkeypatch, name):
    monkeypatch.setattr(char_lm.CharLm, name, getattr(Workload, name))
    with pytest.raises(ConfigError, match=rf"^trainer\.name: 'char_lm:CharLm' has no {name}; see"):
        made()


def _refuses(*_):
    raise ValueError("width: 3 is odd; make it even")


@pytest.mark.parametrize("where", ["resolve_params", "CharLm.__init__"])
def test_a_parameter_is_rejected_with_the_workloads_message(monkeypatch, where):
    monkeypatch.setattr(f"char_lm.{where}", _refuses)
    with pytest.raises(ConfigError, match=r"^trainer\.params: width: 3 is odd; make it even$"):
        made()


def test_parameters_may_be_read_with_anything(monkeypatch):
    monkeypatch.setattr(char_lm, "resolve_params", lambda raw, _: dict(**raw, steps=3))
    with pytest.raises(ConfigError, match=r"^trainer\.params: .*multiple values for keyword argument 'steps'"):
        made(params={"steps": 4})


def test_a_global_batch_that_the_workload_does_not_heed_is_refused():
    with pytest.raises(ConfigError) as refused:
        made(parallelism=Parallelism(global_batch_size=64))
    assert str(refused.value) == (
        "parallelism.globalBatchSize: 64, but the global_batch of 'char_lm:CharLm' is 12; leave it out, or let "
        "resolve_params take parallelism.global_batch_size"
    )
    made(params={"batch": 64}, parallelism=Parallelism(global_batch_size=64))


def test_a_name_that_is_no_class_is_refused():
    with pytest.raises(ConfigError, match=r"^trainer\.name: 'char_lm:_surprise' is not a class, but a function; name"):
        registry.build(Config(trainer=Trainer(name="char_lm:_surprise")))


def test_a_group_may_learn_faster_than_others():
    slow, fast = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": slow.parameters()}, {"params": fast.parameters(), "lr_scale": 4.0}])
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2.0]


def test_a_model_that_an_evaluation_left_in_eval_is_trained_as_before(monkeypatch):
    monkeypatch.setattr(char_lm.CharLm, "evaluate", lambda _, session: session.parallel.module.eval() and {})
    work = made()
    model = work.build()
    still = next(each for each in model.modules() if each is not model).eval()  # as `build` may want it
    world = World(0, 1, 0, CPU, grouped=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    precision = Precision("fp32", CPU, sharded=False)
    work.evaluate(Session(Parallel("single", model, model), precision, world, reporter, None))
    assert model.training
    assert not still.training


@pytest.mark.parametrize(
    ("method", "sections", "says"),
    [
        ("score", {"checkpoint": Checkpoint(keep_best=2)}, "checkpoint.keepBest: 2, but CharLm has no score"),
        ("evaluate", {"evaluation": Evaluation(every_steps=5)}, "evaluation.everySteps: 5, but CharLm has no evaluate"),
        ("evaluate", {"mode": "eval"}, "trainer.mode: eval, but CharLm has no evaluate"),
    ],
)
def test_a_setting_that_needs_a_method_of_the_workload_is_rejected_without_it(monkeypatch, method, sections, says):
    monkeypatch.setattr(char_lm.CharLm, method, getattr(Workload, method))
    trainer = Trainer(name="char_lm:CharLm", mode=sections.pop("mode", "train"))
    with pytest.raises(ConfigError, match=says):
        registry.build(Config(trainer=trainer, **sections))


def test_a_parameter_that_ddp_would_wait_for_is_named():
    model = nn.ModuleDict({"used": nn.Linear(1, 1), "spare": nn.Linear(1, 1)})
    model["used"](torch.ones(1)).backward()
    Parallel("single", model, model).check_gradients()
    with pytest.raises(ConfigError, match=r"no part of spare\.weight, spare\.bias; set requires_grad_"):
        Parallel("ddp", model, model).check_gradients()


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ([["head.weight"], ["head.weight", "body.weight"]], ["head.weight"]),
        ([[], ["body.weight"]], []),
        ([["m.0.experts.1.up", "m.0.experts.0.up"]], []),  # no token was sent to these two
        ([["m.0.experts.0.up", "m.0.experts.1.up", "m.0.experts.2.up"]], [f"m.0.experts.{n}.up" for n in range(3)]),
    ],
)
def test_a_parameter_that_gets_a_gradient_on_no_rank_is_named(missing, expected):
    trainable = ["head.weight", "body.weight", *(f"m.0.experts.{number}.up" for number in range(3))]
    assert never_learned(missing, trainable) == expected
