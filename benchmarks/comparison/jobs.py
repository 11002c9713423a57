"""What is trained by which side: jobs, and the variants that take part in a group of runs."""

import dataclasses

OURS, DDP, FSDP1, FSDP2 = "fsdp.cpp", "DDP", "FSDP1", "FSDP2"
PLAIN = "PyTorch"  # nothing around the model: one process
SIDES = (OURS, DDP, FSDP1, FSDP2, PLAIN)
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
BACKENDS = ("gloo", "shm")
PREFETCHES = ("pre", "post", "none")


@dataclasses.dataclass(frozen=True)
class Job:
    """The keys of training_job.h, which both sides read."""

    model: str
    samples: str
    strategy: str = "full_shard"
    backward_prefetch: str = "pre"
    forward_prefetch: bool = True
    limit_all_gathers: bool = True
    backend: str = "gloo"  # of fsdp.cpp; the others have no other
    sharding_factor: int | None = None
    dtype: str = "fp32"
    checkpointing: bool = False
    offload: bool = False
    keep_memory: bool = False
    auto_units: bool = False
    batch: int = 1
    warm_up: int = 1
    steps: int = 3
    learning_rate: float = 1e-4
    clip_grad_norm: float = 1.0
    threads: int = 1
    memory_limit: int | None = None

    def __post_init__(self):
        check_value("strategy", self.strategy, STRATEGIES)
        check_value("backward_prefetch", self.backward_prefetch, PREFETCHES)
        check_value("backend", self.backend, BACKENDS)
        check_value("dtype", self.dtype, ("fp32", "bf16"))


def check_value(key, value, known):
    if value not in known:
        raise ValueError(f'job: key "{key}" has the unknown value "{value}"; there are: {", ".join(known)}')


def read_job(values):
    """The job of a dictionary with all of its keys and no other."""
    known = {field.name for field in dataclasses.fields(Job)}
    for key in values.keys() - known:
        raise ValueError(f'job: unknown key "{key}"')
    for key in known - values.keys():
        raise ValueError(f'job: key "{key}" is missing')
    return Job(**values)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A side with settings of its own, beside those that all variants of a group have."""

    side: str
    note: str = ""  # what tells it from the side's other variants
    settings: tuple = ()  # pairs of a key of Job and its value

    def __post_init__(self):
        check_value("side", self.side, SIDES)

    @property
    def name(self):
        return f"{self.side} {self.note}".strip()

    def job(self, common):
        return dataclasses.replace(common, **dict(self.settings))


def variant(side, note="", **settings):
    return Variant(side, note, tuple(settings.items()))


LEAST_MEMORY = variant(OURS, "full_shard, auto_units", auto_units=True)


def of_strategies(strategies):
    """Ours and what PyTorch has for the same: DDP for no_shard (and FSDP2 has none), FSDP1 and FSDP2 for the others."""
    chosen = []
    for strategy in strategies:
        sides = (OURS, DDP) if strategy == "no_shard" else (OURS, FSDP1, FSDP2)
        chosen += [variant(side, "" if side == DDP else strategy, strategy=strategy) for side in sides]
    if "full_shard" in strategies:
        chosen.insert(1, LEAST_MEMORY)
    return tuple(chosen)
