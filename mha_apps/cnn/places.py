"""Where gates go: `auto` reads the data flow of one forward pass, everything else names modules.

A gate belongs at the end of each residual branch, before its result is added to the shortcut. Where a network adds
nothing, it belongs at the end of each stage, before the resolution falls.
"""

from __future__ import annotations

import difflib
import fnmatch
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

from mha_apps.cnn.dataflow import ADDITIONS, MULTIPLICATIONS, POOLS, SPLITS, Flow, Value, is_product
from mha_apps.errors import InputError

__all__ = ["Places", "Where", "choose", "nearest"]

Where = str | Sequence[str] | Callable[[str, nn.Module], bool]

# A resolution that falls by less than this is a border that was not padded, not a new stage.
STAGE_RATIO = 1.4
# Their forward is the list of their children, so that a gate among these would run as one more layer.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass
class Places:
    """The hosts that were chosen, with the value that each returns, and why others were passed over."""

    hosts: dict[str, Value] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def choose(model: nn.Module, flow: Flow, where: Where, taken: Iterable[str], marker: str) -> Places:
    """The modules whose result a gate shall scale.

    Args:
        model: the network.
        flow: the record of a pass through it.
        where: `auto`, a glob over module paths, a list of paths or globs, or a function of path and module.
        taken: paths that have a gate already.
        marker: name of the child that holds a gate; nothing inside such a child is a host.

    Raises:
        InputError: nothing can be chosen, or a gate would go where one is.
    """
    where = _checked(where)
    chooser = _Chooser(dict(model.named_modules()), flow, marker)
    places = chooser.automatic() if isinstance(where, str) and where == "auto" else chooser.named(where)
    taken = set(taken)
    for path in places.hosts:
        if path in taken:
            raise InputError(f"{path}: has a gate already; take it out with unplug(model) or name another place")
    return places


class _Chooser:
    def __init__(self, modules: dict[str, nn.Module], flow: Flow, marker: str) -> None:
        self.modules = modules
        self.flow = flow
        self.marker = marker
        self.products = flow.products
        self.nonlinearities = flow.nonlinearities

    # What a host has to be

    def objection(self, path: str) -> str | None:
        """Why the module at `path` cannot host a gate, or None if it can."""
        module = self.modules[path]
        if path == "":
            return "is the whole model"
        if self.marker in path.split("."):
            return "is part of a gate"
        if isinstance(module, CONTAINERS):
            return "is a container that runs its children in turn; name one of them"
        if self.flow.calls[path] == 0:
            return "does not run in a forward pass"
        if self.flow.calls[path] > 1:
            return f"runs {self.flow.calls[path]} times in a forward pass; name a module that runs once"
        value = self.flow.returned_by(path)
        if value is None:
            return "does not return one tensor"
        # Where the channels are cannot always be told; whoever names such a module knows.
        if len(value.shape) != 4 or value.channel_axis not in (1, None):
            return f"returns {value.shape}, which is not (batch, channels, height, width)"
        return None

    def maker(self, value: Value) -> str | None:
        """The innermost module that computed `value`, returned it and can host a gate.

        A module that only passes it on (dropout, stochastic depth, an identity) is none: what it is changes with the
        settings of the network, and the keys of the gates must not.
        """
        if not value.is_map:
            return None
        for path in value.outputs_of:
            inside = value.owner == path or value.owner.startswith(path + ".")
            if inside and self.objection(path) is None:
                return path
        return None

    # Automatic choice

    def automatic(self) -> Places:
        places = Places()
        for value in self.flow.values:
            branch = self.residual_branch(value)
            if branch is None:
                continue
            found = self.end_of_branch(*branch)
            if found is None:
                places.skipped.append(
                    f"the addition in {value.owner or 'the model'}: its branch ends in no module that could host"
                )
            else:
                places.hosts.setdefault(*found)
        if not places.hosts:
            places.hosts = self.ends_of_stages()
        if not places.hosts:
            side = "x".join(map(str, self.flow.input_shape[2:]))
            raise InputError(
                f"where='auto' found no residual branch and no end of a stage in a pass of {side} pixels; give it a "
                f"larger image, or name the modules whose output shall be gated, as where={self.suggestion()!r}"
            )
        return places

    def residual_branch(self, value: Value) -> tuple[Value, Value] | None:
        """The branch of a residual addition and the tensor from which it starts, or None if this is none."""
        images = value.images
        if value.operation not in ADDITIONS or len(images) != 2 or not value.is_map:
            return None
        first, second = images
        if first is second or first.shape != value.shape or second.shape != value.shape:
            return None
        for branch, shortcut in ((first, second), (second, first)):
            start = self.start_of_shortcut(shortcut, branch)
            # A sum that goes on being added to is one layer written as several, not the end of a branch.
            if start is None or (branch.operation in ADDITIONS and not branch.outputs_of):
                continue
            own = branch.ancestors & ~start.ancestors
            work = (own & self.products).bit_count()
            projections = (shortcut.ancestors & ~start.ancestors & self.products).bit_count()
            # One convolution beside the identity, without an activation, is a linear layer written as a sum.
            if projections <= 1 and (work > 1 or (work == 1 and own & self.nonlinearities)) and work > projections:
                return branch, start
        return None

    def start_of_shortcut(self, shortcut: Value, branch: Value) -> Value | None:
        """The value from which both sides start, if the shortcut is that value, or one chain of operations from it."""
        while not branch.comes_from(shortcut):
            if len(shortcut.images) != 1 or shortcut.operation in SPLITS:
                return None
            shortcut = shortcut.images[0]
        return shortcut if shortcut is not branch else None

    def end_of_branch(self, branch: Value, start: Value) -> tuple[str, Value] | None:
        """The last module of the branch that returns a feature map, and what it returns."""
        value: Value | None = branch
        while value is not None and not start.comes_from(value):
            is_scale = value.operation in MULTIPLICATIONS and len(value.images) == 1
            if not is_scale and (path := self.maker(value)) is not None:
                return path, value
            value = _main_input(value)
        return None

    def ends_of_stages(self) -> dict[str, Value]:
        """The last host at each resolution on the trunk, as long as something with weights comes after it."""
        trunk = self.trunk()
        last_product = max((i for i, value in enumerate(trunk) if is_product(value)), default=0)
        stages: list[list[Value]] = []
        for value in trunk[:last_product]:
            if not value.is_map:
                continue
            falls = stages and stages[-1][0].shape[2] >= STAGE_RATIO * value.shape[2]
            if not stages or falls:
                stages.append([])
            stages[-1].append(value)
        hosts = {}
        for stage in stages:
            for value in reversed(stage):
                path = None if value.operation in POOLS else self.maker(value)
                if path is not None:
                    hosts[path] = value
                    break
        return hosts

    def trunk(self) -> list[Value]:
        """The values that every path from the image to the output passes (the dominators of the output), in order."""
        if not self.flow.outputs:
            return []
        goal = self.flow.outputs[-1]
        parent: dict[Value, Value | None] = {}
        depth: dict[Value, int] = {}
        for value in self.flow.values[: goal.index + 1]:
            if not value.of_image:
                continue
            meeting = value.images[0] if value.images else None
            for other in value.images[1:]:
                while meeting is not None and meeting is not other:
                    if depth[meeting] >= depth[other]:
                        meeting = parent[meeting]
                    elif (up := parent[other]) is not None:
                        other = up
                    else:
                        meeting = None
            parent[value] = meeting
            depth[value] = 0 if meeting is None else depth[meeting] + 1
        chain: list[Value] = []
        step: Value | None = goal if goal in parent else None
        while step is not None:
            chain.append(step)
            step = parent[step]
        return chain[::-1]

    # Choice by name

    def named(self, where: Where) -> Places:
        places = Places()
        for path in self.matches(where):
            host = self.last_of_container(path)
            problem = self.objection(host)
            value = self.flow.returned_by(host)
            if problem is not None or value is None:
                places.skipped.append(f"{path or 'the model itself'}: {problem}")
            else:
                places.hosts[host] = value
        if not places.hosts:
            raise InputError(
                f"where={_describe(where)} matches no module that can host a gate: {'; '.join(places.skipped[:3])}; "
                f"try where={self.suggestion()!r}"
            )
        return places

    def matches(self, where: Where) -> list[str]:
        paths = [path for path in self.modules if self.marker not in path.split(".")]
        if callable(where):
            found = [path for path in paths if where(path, self.modules[path])]
            if not found:
                raise InputError(f"where={_describe(where)} is true for none of the {len(paths)} modules")
            return found
        chosen: list[str] = []
        for pattern in [where] if isinstance(where, str) else where:
            found = [path for path in paths if fnmatch.fnmatchcase(path, pattern)]
            if not found:
                near = nearest(pattern, [path for path in paths if path and self.objection(path) is None])
                hint = f"; the nearest are {', '.join(near)}" if near else ""
                raise InputError(f"where={pattern!r} matches no module{hint}")
            chosen += [path for path in found if path not in chosen]
        return chosen

    def last_of_container(self, path: str) -> str:
        """The module that returns what the container at `path` returns, as far down as there are containers."""
        while isinstance(module := self.modules[path], nn.Sequential) and len(module) > 0:
            inner = f"{path}.{list(module._modules)[-1]}".lstrip(".")
            value = self.flow.returned_by(path)
            if value is None or inner not in value.outputs_of:
                break
            path = inner
        return path

    def suggestion(self) -> list[str]:
        """A few hosts that would do, the deepest last."""
        convolutions = [
            path for path, module in self.modules.items() if isinstance(module, nn.Conv2d) and not self.objection(path)
        ]
        return convolutions[-3:]


def _main_input(value: Value) -> Value | None:
    """The input that `value` carries on: the only one, or the only one of the same shape, or none to be sure of."""
    candidates = value.images
    if len(candidates) > 1:
        same = [source for source in candidates if source.shape == value.shape]
        candidates = same if value.operation in MULTIPLICATIONS else []
    return candidates[0] if len(candidates) == 1 else None


def nearest(name: str, known: Iterable[str], count: int = 4) -> list[str]:
    """The known names most like `name`, the best first: those that hold it or begin alike before others, never none."""

    def likeness(other: str) -> tuple[bool, float]:
        held = name.lower() in other.lower() or other.lower() in name.lower()
        return held, difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()

    return sorted(dict.fromkeys(known), key=likeness, reverse=True)[:count]


def _checked(where: Where) -> Where:
    """`where` with its names in a list, if it is of a kind that can be used."""
    if isinstance(where, str) or (callable(where) and not isinstance(where, nn.Module)):
        return where
    names = list(where) if isinstance(where, Iterable) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"where={reprlib.repr(where)} names no place; give 'auto', a glob over module paths, a list of them or a "
            "function of path and module"
        )
    if "auto" in names:
        raise InputError(f"where={names!r}: 'auto' chooses all places, and stands alone: where='auto'")
    return names


def _describe(where: Where) -> str:
    return getattr(where, "__name__", "a function") if callable(where) else repr(where)
