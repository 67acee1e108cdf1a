"""Puts the core into models that were written with somebody else's attention.

A replaced module stays the object it was, with its hooks, its fields and its place in the model, but its class is
now an adapter: a subclass of its own that passes the call on to a ``MultiHeadAttention`` named ``core``. Classes of
peers are recognised by name, and never imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .convert import assemble, from_torch, mask_from_torch, split, why_not_dropout, why_not_torch
from .kernel import attention_weights, dense
from .mask import Causal, Dense, Mask, Padding
from .multihead import MultiHeadAttention

__all__ = ["Replacement", "replace_attention"]


@dataclass(frozen=True)
class Replacement:
    """What ``replace_attention`` did; printed, it says so.

    Attributes:
        replaced: the core of each attention module that was replaced, by the module's name in the model. Set
            ``core.kernel`` to choose a kernel, and ``mask`` of the module itself to narrow its attention.
        refused: why a module was left as it was, by its name; also those that are attention by their class's name
            but of no kind that is known here.
    """

    replaced: dict[str, MultiHeadAttention] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} attention modules were replaced"]
        return "\n".join(lines + [f"{name} was left as it was: {why}" for name, why in self.refused.items()])


def replace_attention(
    model: nn.Module, *, kernel: str = "auto", mask: Mask | None = None, strict: bool = True
) -> Replacement:
    """Replace the attention of a model by the core, in place, with the same outputs.

    Replaced are ``nn.MultiheadAttention`` (so also what is inside ``nn.TransformerEncoder``, ``nn.Transformer`` and
    torchvision's ViT), timm's ``Attention``, and the self-attention of Hugging Face ViT and BERT encoders and of the
    models whose attention is a copy of theirs. Each keeps its signature, its return value, the polarity of its
    masks and its ``batch_first``, and the model's ``state_dict`` keeps its keys: it loads and saves the checkpoints
    of the model as it was. ``record_attention`` then works on the model.

    Where the outputs differ: a query that may attend to nothing gets zero instead of NaN, and NaN in padding reaches
    no other position; weights that a module returns in training are those before dropout; ``is_causal`` of
    ``nn.MultiheadAttention`` works without an attn_mask. ``nn.TransformerEncoder`` takes no fast path any more,
    so that padded positions hold what its slow path gives there, not zeros.

    Parameters are new objects: make the optimizer afterwards. Those that modules share stay shared.

    Args:
        model: changed in place; may itself be an attention module.
        kernel: see ``MultiHeadAttention``.
        mask: narrows the attention of every replaced module, beside the masks that the model passes.
        strict: whether a module that cannot be replaced raises, and nothing is changed.

    Returns:
        which modules were replaced, and which were left as they were and why.

    Raises:
        ValueError: there is no attention that is known here; or modules that cannot be replaced, each named with
            the reason (``add_bias_kv``, ``add_zero_attn``, decoders with a cache, ...).
    """
    if isinstance(model, _Adapter):
        return Replacement()
    found = {name: (module, kind) for name, module in model.named_modules() if (kind := _kind(module)) is not None}
    if not found:
        if any(isinstance(module, _Adapter | MultiHeadAttention) for module in model.modules()):
            return Replacement()
        others = ", ".join(sorted({type(module).__name__ for module in _unknown(model).values()}))
        raise ValueError(
            "found no nn.MultiheadAttention, timm Attention or Hugging Face ViT or BERT attention in "
            f"{type(model).__name__}" + (f"; it has {others}, which cannot be replaced" if others else "")
        )
    refused = {name: why for name, (module, kind) in found.items() if (why := kind.why_not(module)) is not None}
    if refused and strict:
        listed = "; ".join(f"{name or type(model).__name__}: {why}" for name, why in refused.items())
        raise ValueError(f"cannot replace {listed} (strict=False leaves these as they are)")
    shared = {name: dict(module.named_parameters(remove_duplicate=False)) for name, (module, _) in found.items()}
    replaced = {
        name: _adopt(module, kind, kernel, mask) for name, (module, kind) in found.items() if name not in refused
    }
    _tie([(found[name][0], shared[name]) for name in replaced])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, _Adapter) for m in module.modules()):
            # Its fast path would read the weights and pass by the core.
            module.use_nested_tensor = False
    refused |= {name: f"{type(module).__name__} is not known here" for name, module in _unknown(model).items()}
    return Replacement(replaced, refused)


class _Adapter(nn.Module):
    """Base of the adapters, each of which is mixed into the class of its host."""

    core: MultiHeadAttention
    #: Narrows the attention further; see ``replace_attention``.
    mask: Mask | None
    #: A state_dict key of the host, and the keys of the tensors here that it is the concatenation of.
    _keys: dict[str, tuple[str, ...]]

    @staticmethod
    def why_not(host: Any) -> str | None:
        """What keeps this module from being replaced, if anything."""
        raise NotImplementedError

    @staticmethod
    def take(host: Any, kernel: str) -> tuple[MultiHeadAttention, dict[str, tuple[str, ...]]]:
        """A core that has the host's weights, and the ``_keys`` of the adapter."""
        raise NotImplementedError

    def attend(
        self,
        x: Tensor,
        context: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None,
        dropout: float,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The core's output, and its weights (batch, heads, query, key) where they are asked for."""
        core = self.core
        core.dropout = dropout
        if context is None and mask is not None:
            # The core gives no query to padding in self-attention. The host does.
            context = x
        lengths = x.shape[1], (x if context is None else context).shape[1]
        mask = _narrow(mask, self.mask, lengths, core.heads)
        if not need_weights:
            return core(x, context, value=value, mask=mask), None
        kept: list[Tensor] = []
        outer = core.recorder

        def keep(query: Tensor, key: Tensor, mask: Mask | None, biases: Any, *positions: Tensor) -> None:
            if outer is not None:
                outer(query, key, mask, biases, *positions)
            kept.append(attention_weights(query, key, *dense(query, key, mask, biases)))

        core.recorder = keep
        try:
            out = core(x, context, value=value, mask=mask)
        finally:
            core.recorder = outer
        return out, kept[0].to(out.dtype)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        prefix = args[1] if len(args) > 1 else kwargs.get("prefix", "")
        for theirs, ours in self._keys.items():
            parts = [state.pop(prefix + key) for key in ours]
            state[prefix + theirs] = torch.cat(parts) if len(parts) > 1 else parts[0]
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for theirs, ours in self._keys.items():
            if prefix + theirs in state_dict:
                parts = state_dict.pop(prefix + theirs)
                parts = [part.clone() for part in parts.chunk(len(ours))] if len(ours) > 1 else [parts]
                state_dict.update({prefix + key: part for key, part in zip(ours, parts, strict=True)})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made on the fly, so that pickle would not find it by name.
        kind, host = type(self).__bases__
        return _blank, (kind, host), self.__dict__


class _TorchAdapter(_Adapter):
    """``nn.MultiheadAttention``; the packed weights are copies, made when somebody reads them."""

    embed_dim: int
    num_heads: int
    dropout: float
    batch_first: bool

    @staticmethod
    def why_not(host: Any) -> str | None:
        if type(host).forward is not nn.MultiheadAttention.forward:
            return f"its class {type(host).__name__} has a forward of its own"
        return why_not_torch(host)

    @staticmethod
    def take(host: Any, kernel: str) -> tuple[MultiHeadAttention, dict[str, tuple[str, ...]]]:
        core = from_torch(host, kernel=kernel)
        core.output = host.out_proj
        keys: dict[str, tuple[str, ...]] = {"out_proj.weight": ("core.output.weight",)}
        weights = tuple(f"core.{name}.weight" for name in ("query", "key", "value"))
        if host.in_proj_weight is not None:
            keys["in_proj_weight"] = weights
        else:
            keys |= {f"{letter}_proj_weight": (key,) for letter, key in zip("qkv", weights, strict=True)}
        if host.in_proj_bias is not None:
            keys["in_proj_bias"] = tuple(f"core.{name}.bias" for name in ("query", "key", "value"))
            keys["out_proj.bias"] = ("core.output.bias",)
        for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            host._parameters.pop(name, None)  # those that are None too, since they are properties now
        # With this, nn.TransformerEncoderLayer leaves its fast path, which would not call the core.
        host._qkv_same_embed_dim = False
        return core, keys

    @property
    def in_proj_weight(self) -> Tensor | None:
        weights = self.core.query.weight, self.core.key.weight, self.core.value.weight
        return torch.cat(weights) if len({weight.shape for weight in weights}) == 1 else None

    @property
    def in_proj_bias(self) -> Tensor | None:
        biases: list[Tensor] = [layer.bias for layer in (self.core.query, self.core.key, self.core.value)]
        return None if biases[0] is None else torch.cat(biases)

    @property
    def q_proj_weight(self) -> Tensor:
        return self.core.query.weight

    @property
    def k_proj_weight(self) -> Tensor:
        return self.core.key.weight

    @property
    def v_proj_weight(self) -> Tensor:
        return self.core.value.weight

    @property
    def out_proj(self) -> nn.Module:
        return self.core.output

    def _reset_parameters(self) -> None:
        self.core.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | Mask | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention.forward``; attn_mask may also be one of our masks, of our polarity."""
        if query.is_nested:
            raise ValueError("a nested tensor reached a replaced attention: call replace_attention on the whole model")
        batched = query.dim() == 3
        x = self._batch_first(query, batched)
        context = None if key is query else self._batch_first(key, batched)
        values = None if value is key else self._batch_first(value, batched)
        lengths = x.shape[1], (x if context is None else context).shape[1]
        if is_causal and attn_mask is None and lengths[0] != lengths[1]:
            attn_mask = torch.ones(lengths, dtype=torch.bool, device=x.device).triu(1)
        extra = attn_mask if isinstance(attn_mask, Mask) else None
        theirs = None if isinstance(attn_mask, Mask) else attn_mask
        mask = mask_from_torch(key_padding_mask, theirs, heads=self.num_heads, is_causal=is_causal)
        mask = _narrow(mask, extra, lengths, self.num_heads)
        out, weights = self.attend(x, context, values, mask=mask, dropout=self.dropout, need_weights=need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)


class _TimmAdapter(_Adapter):
    """``timm.layers.Attention`` of timm 1.0.20 and later; its output projection stays where it was."""

    attn_drop: nn.Dropout
    norm: nn.Module
    proj: nn.Module
    proj_drop: nn.Module

    @staticmethod
    def why_not(host: Any) -> str | None:
        return why_not_dropout(host.attn_drop.p) or _why_not_scale(host.scale, host.head_dim)

    @staticmethod
    def take(host: Any, kernel: str) -> tuple[MultiHeadAttention, dict[str, tuple[str, ...]]]:
        layers = split(host.qkv.weight, host.qkv.bias)
        core = assemble(layers, nn.Identity(), heads=host.num_heads, dropout=host.attn_drop.p, kernel=kernel)
        core.query_norm, core.key_norm = host.q_norm, host.k_norm
        keys = {"qkv.weight": tuple(f"core.{name}.weight" for name in ("query", "key", "value"))}
        if host.qkv.bias is not None:
            keys["qkv.bias"] = tuple(f"core.{name}.bias" for name in ("query", "key", "value"))
        for theirs, ours in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
            keys |= {f"{theirs}.{key}": (f"core.{ours}.{key}",) for key in getattr(host, theirs).state_dict()}
            host._modules.pop(theirs)
        return core, keys

    def forward(
        self, x: Tensor, attn_mask: Tensor | Mask | None = None, is_causal: bool = False, **kwargs: Any
    ) -> Tensor:
        """As ``timm.layers.Attention.forward``; attn_mask may also be one of our masks."""
        if kwargs:
            raise ValueError(f"a replaced timm Attention takes attn_mask and is_causal, got {', '.join(kwargs)}")
        if is_causal and isinstance(attn_mask, Tensor):
            raise ValueError("timm Attention takes is_causal or attn_mask, got both")
        if isinstance(attn_mask, Tensor) and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(0)
        mask = _narrow(attn_mask, Causal() if is_causal else None, (x.shape[1], x.shape[1]), self.core.heads)
        out, _ = self.attend(x, mask=mask, dropout=self.attn_drop.p)
        out = self.norm(out)
        gate = getattr(self, "gate", None)
        if gate is not None:
            out = out * gate(x).sigmoid()
        return self.proj_drop(self.proj(out))


class _HuggingFaceAdapter(_Adapter):
    """Self-attention of the ViT and BERT encoders of transformers, versions 4 and 5."""

    #: Names of the host's arguments, in order; they differ between versions.
    _arguments: tuple[str, ...]

    NOT_TAKEN = ("cache", "past_key_value", "past_key_values", "head_mask", "encoder_hidden_states")

    @staticmethod
    def why_not(host: Any) -> str | None:
        if getattr(host, "is_decoder", False) or getattr(host, "is_causal", False):
            return "it belongs to a decoder, which keeps a cache of its own"
        if "Cross" in type(host).__name__:
            return "cross-attention keeps a cache of its own"
        position = getattr(host, "position_embedding_type", None) or "absolute"
        if position != "absolute":
            return f"its position_embedding_type is {position!r}, not 'absolute'"
        head_dim = host.head_dim if hasattr(host, "head_dim") else host.attention_head_size
        scale = getattr(host, "scaling", head_dim**-0.5)
        return why_not_dropout(_hf_dropout(host)) or _why_not_scale(scale, head_dim)

    @staticmethod
    def take(host: Any, kernel: str) -> tuple[MultiHeadAttention, dict[str, tuple[str, ...]]]:
        names = ("q_proj", "k_proj", "v_proj", "o_proj") if hasattr(host, "q_proj") else ("query", "key", "value")
        layers = [getattr(host, name) for name in names]
        if len(layers) < 4:
            layers.append(nn.Identity())  # the output projection is in another module
        core = assemble(layers[:3], layers[3], heads=host.num_attention_heads, dropout=_hf_dropout(host), kernel=kernel)
        keys: dict[str, tuple[str, ...]] = {}
        for theirs, ours in zip(names, ("query", "key", "value", "output"), strict=False):
            keys |= {f"{theirs}.{key}": (f"core.{ours}.{key}",) for key in getattr(host, theirs).state_dict()}
        return core, keys

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """As the host's forward; weights are returned where they are asked for, or the implementation is eager."""
        given = dict(zip(self._arguments, args, strict=False)) | kwargs
        for name in self.NOT_TAKEN:
            if given.get(name) is not None:
                raise ValueError(f"a replaced {type(self).__bases__[1].__name__} does not take {name}")
        x, mask = given["hidden_states"], given.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            mask = Padding(mask.bool())  # as FlashAttention gets it: 1 for real keys
        elif mask is not None and not isinstance(mask, Tensor | Mask):
            raise ValueError(f"attention_mask is a {type(mask).__name__}: use attn_implementation='sdpa' or 'eager'")
        need_weights = bool(given.get("output_attentions"))
        if "output_attentions" in self._arguments:  # BERT of transformers 4
            result = self.attend(x, mask=mask, dropout=_hf_dropout(self), need_weights=need_weights)
            return result if need_weights else result[:1]  # type: ignore[return-value]
        implementation = getattr(getattr(self, "config", None), "_attn_implementation", None)
        need_weights = need_weights or implementation in (None, "eager")
        return self.attend(x, mask=mask, dropout=_hf_dropout(self), need_weights=need_weights)  # type: ignore[return-value]


#: Class names in ``transformers`` 4 and 5 whose forward is that of ViT's or BERT's attention.
HUGGING_FACE = frozenset(
    f"{model}{suffix}"
    for models, suffixes in (
        (("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "ViTMAE", "ViTMSN"), ("Attention", "SelfAttention")),
        (
            ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra"),
            ("SelfAttention", "SdpaSelfAttention", "CrossAttention"),
        ),
    )
    for model in models
    for suffix in suffixes
)


def _kind(module: nn.Module) -> type[_Adapter] | None:
    """The adapter for a module, if there is one."""
    if isinstance(module, _Adapter):
        return None
    if isinstance(module, nn.MultiheadAttention):
        return _TorchAdapter
    name, origin = type(module).__name__, type(module).__module__
    if name == "Attention" and origin in ("timm.layers.attention", "timm.models.vision_transformer"):
        return _TimmAdapter
    if origin.startswith("transformers.") and name in HUGGING_FACE and _hf_projections(module):
        return _HuggingFaceAdapter
    return None


def _unknown(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that are attention by name, and neither of a known kind nor around one."""
    return {
        name: module
        for name, module in model.named_modules()
        if "attention" in type(module).__name__.lower()
        and not any(isinstance(inner, MultiHeadAttention) or _kind(inner) is not None for inner in module.modules())
    }


def _hf_projections(module: nn.Module) -> bool:
    """Whether the module projects, rather than holds another one that does, as ViTAttention of transformers 4."""
    return hasattr(module, "q_proj") or isinstance(getattr(module, "query", None), nn.Linear)


def _adopt(host: nn.Module, kind: type[_Adapter], kernel: str, mask: Mask | None) -> MultiHeadAttention:
    """Make a module an adapter."""
    core, keys = kind.take(host, kernel)
    for name in {key.split(".")[0] for key in keys}:
        host._modules.pop(name, None)
    host.__class__ = _adapter_class(kind, type(host))
    assert isinstance(host, _Adapter)
    host.core = core.train(host.training)
    host.mask, host._keys = mask, keys
    return core


def _tie(adopted: Sequence[tuple[Any, dict[str, nn.Parameter]]]) -> None:
    """Share again, between adapters, the parameters that their hosts had shared.

    Args:
        adopted: each adapter, and the parameters of the host that it was.
    """
    copies: dict[nn.Parameter, list[nn.Parameter]] = {}
    for adapter, parameters in adopted:
        for theirs, ours in adapter._keys.items():
            if theirs not in parameters:
                continue
            first = copies.setdefault(parameters[theirs], [adapter.get_parameter(key) for key in ours])
            for key, parameter in zip(ours, first, strict=True):
                place, _, name = key.rpartition(".")
                setattr(adapter.get_submodule(place), name, parameter)


def _adapter_class(kind: Any, host: Any) -> Any:
    """The adapter mixed into the host's class; the same one for every module of that class."""
    if (kind, host) not in _CLASSES:
        arguments = tuple(inspect.signature(host.forward).parameters)[1:]
        fields = {"_arguments": arguments, "__module__": __name__}
        _CLASSES[kind, host] = type(f"Replaced{host.__name__}", (kind, host), fields)
    return _CLASSES[kind, host]


_CLASSES: dict[tuple[Any, Any], Any] = {}


def _blank(kind: Any, host: Any) -> Any:
    """An adapter without state, for unpickling."""
    made = _adapter_class(kind, host)
    return made.__new__(made)


def _narrow(
    mask: Mask | Tensor | None, extra: Mask | None, lengths: tuple[int, int], heads: int
) -> Mask | Tensor | None:
    """A mask that also holds what the other one does."""
    if extra is None or mask is None:
        return mask if extra is None else extra
    if isinstance(mask, Mask):
        return extra & mask
    if mask.dtype == torch.bool:
        return extra & Dense(mask)
    return mask.masked_fill(~extra.materialize(*lengths, mask.device, heads), float("-inf"))


def _why_not_scale(scale: float, head_dim: int) -> str | None:
    usual = head_dim**-0.5
    return None if abs(scale - usual) < 1e-6 else f"its scale is {scale:g}, not 1 / sqrt(head_dim) = {usual:g}"


def _hf_dropout(host: Any) -> float:
    """Dropout of the weights, which has another name in each version."""
    for name in ("attention_dropout", "dropout_prob"):
        if isinstance(getattr(host, name, None), float | int):
            return float(getattr(host, name))
    return float(host.dropout.p)
