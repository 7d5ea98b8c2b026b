"""What each `model_type` of Hugging Face builds: biases, norms, heads, windows and experts, as data.

The config.json gives sizes; which matrices exist is in the modeling code. Each entry follows the modeling and
configuration files of transformers 5.24.0 (`src/transformers/models/<model_type>/`); internlm2, chatglm-free
names such as kimi_k2 and the older fused names follow the repositories' own modeling files. A type that is not
here is refused, never treated as something like Llama.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Experts:
    """Names of the config's fields that describe a mixture of experts, and what its layers hold besides.

    `layers` says which layers have experts: all, deepseek (first_k_dense_replace, moe_layer_freq), qwen
    (mlp_only_layers, decoder_sparse_step), ernie (moe_layer_start_index, .._end_index, .._interval) or llama4
    (moe_layers, interleave_moe_layer_step). `shared` is how the shared expert's width is given: "" none,
    counted (n_shared_experts x the experts' width) or the name of a field. `biases`: the experts' matrices
    have biases; `router_bias`: so has the router.
    """

    count: str = "num_local_experts"
    top_k: str = "num_experts_per_tok"
    width: str = "intermediate_size"
    layers: str = "all"
    shared: str = ""
    shared_count: str = "n_shared_experts"
    shared_gate: bool = False
    biases: bool = False
    router_bias: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """How the layers of a model_type are built. Where a value is a string, it is the config's field.

    * `norm`: rms (a weight), layer (a weight and a bias) or none; `norms` of the hidden size a layer;
      `qk_norm`: head (one of head_dim for q and one for k), heads (one of head_dim for each head), full (over
      all heads together); `final_norm` after the last layer.
    * `qkv_bias`, `out_bias`, `mlp_bias`, `head_bias`: True, False or the field that says so.
    * `gated`: the MLP has gate, up and down matrices; else up and down. `mlp_width`: the field with its
      width; `mlp_factor`: the width in hidden sizes when the config leaves it out.
    * `tied`: what tie_word_embeddings is when the config leaves it out.
    * `positions`: the field with the number of learned positions; `extra_positions` are added to it.
    * `window`: which layers slide: "" none, all, alternate (the first slides), pattern (all but each Nth) or
      qwen (from max_window_layers on, only with use_sliding_window). `window_period` is that N, `window_field` the
      field with the tokens. Llama 4's chunks count as windows: its layers see up to a chunk of tokens.
    * `kv_heads`: what a config without num_key_value_heads means: "" refused, heads (as many as heads),
      multi_query (one if that field says so), falcon.
    * `fields`: this pack's word -> the config's; `defaults`: values that configs of the type really leave out.
    * `modules`: this pack's name of a module or of its beginning -> that of the checkpoint, the first that fits,
      for the lists of unquantised modules.
    """

    norm: str = "rms"
    norms: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: str = ""
    qk_norm_if: str = ""
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    gated: bool = True
    mlp_factor: int = 0
    mlp_width: str = "intermediate_size"
    tied: bool = False
    positions: str = ""
    extra_positions: int = 0
    window: str = ""
    window_field: str = "sliding_window"
    window_period: int = 0
    kv_heads: str = ""
    attention: str = "gqa"
    gated_attention: bool = False
    sinks: bool = False
    experts: Experts | None = None
    fields: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, int] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)


LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", kv_heads="heads")
MISTRAL = Family(window="all")
QWEN2 = Family(qkv_bias=True, window="qwen")
QWEN3 = Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", window="qwen")
GEMMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", tied=True)
OLMO = Family(qkv_bias="attention_bias", out_bias="attention_bias", kv_heads="heads")
GLM = Family(qkv_bias="attention_bias")

QWEN_EXPERTS = Experts("num_experts", width="moe_intermediate_size", layers="qwen")
DEEPSEEK_EXPERTS = Experts("n_routed_experts", width="moe_intermediate_size", layers="deepseek", shared="counted")
DEEPSEEK_V2 = Family(attention="mla", qkv_bias="attention_bias", out_bias="attention_bias", experts=DEEPSEEK_EXPERTS)
DEEPSEEK_V3 = replace(DEEPSEEK_V2, experts=replace(DEEPSEEK_EXPERTS, router_bias=True))

GATED_EXPERTS = replace(QWEN_EXPERTS, shared="shared_expert_intermediate_size", shared_gate=True)
# Gated delta nets with full attention in every fourth layer, whose q matrix makes a gate as well.
HYBRID = Family(
    qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", gated_attention=True,
    attention="gqa+linear", experts=GATED_EXPERTS,
)  # fmt: skip

# GPT-2 and its kin: LayerNorm with bias, one up and one down matrix, biases, one table for embedding and head.
GPT = Family(
    norm="layer", qkv_bias=True, out_bias=True, mlp_bias=True, gated=False, mlp_factor=4, tied=True, kv_heads="heads",
    fields={"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "intermediate_size": "n_inner"},
)  # fmt: skip
GPTJ = replace(GPT, norms=1, qkv_bias=False, out_bias=False, tied=False, head_bias=True)
PHI_MODULES = {"self_attn.q_proj": "self_attn.qkv_proj", "self_attn.k_proj": "self_attn.qkv_proj",
               "self_attn.v_proj": "self_attn.qkv_proj", "mlp.gate_proj": "mlp.gate_up_proj",
               "mlp.up_proj": "mlp.gate_up_proj"}  # fmt: skip
MIXTRAL_MODULES = {"mlp.router": "block_sparse_moe.gate", "mlp.experts.0.gate_proj": "block_sparse_moe.experts.0.w1",
                   "mlp.experts.0.up_proj": "block_sparse_moe.experts.0.w3",
                   "mlp.experts.0.down_proj": "block_sparse_moe.experts.0.w2"}  # fmt: skip
GATE = {"mlp.router": "mlp.gate"}
ONE_SHARED = {**GATE, "mlp.shared_experts": "mlp.shared_expert"}

FAMILIES: dict[str, Family] = {
    # Llama-like
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "phi3": Family(window="all", kv_heads="heads", modules=PHI_MODULES),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms=4, window="alternate"),
    "gemma3_text": replace(
        GEMMA, norms=4, qk_norm="head", window="pattern", window_period=6,
        defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
    ),
    "granite": LLAMA,
    "olmo": replace(OLMO, norm="none"),
    "olmo2": replace(OLMO, qk_norm="full"),
    "olmo3": replace(OLMO, qk_norm="full", window="pattern", window_period=4),
    "smollm3": replace(LLAMA, tied=True, kv_heads=""),
    "internlm2": Family(qkv_bias="bias", out_bias="bias", kv_heads="heads"),
    "baichuan": Family(kv_heads="heads"),
    "helium": replace(LLAMA, kv_heads=""),
    "hunyuan_v1_dense": replace(LLAMA, kv_heads="", mlp_bias=False, qk_norm="head"),
    "ministral": MISTRAL,
    "ministral3": MISTRAL,
    "qwen2_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3_vl_text": replace(QWEN3, window=""),
    "qwen3_5_text": replace(HYBRID, experts=None),
    "glm": replace(GLM, norms=2),
    "glm4": replace(GLM, norms=4),
    "seed_oss": Family(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "exaone4": Family(qk_norm="head", window="pattern", window_period=4),
    "ernie4_5": Family(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True),
    "cohere": Family(
        norms=1, qkv_bias="attention_bias", out_bias="attention_bias", tied=True, kv_heads="heads",
        qk_norm="heads", qk_norm_if="use_qk_norm",
    ),
    "cohere2": Family(
        norms=1, qkv_bias="attention_bias", out_bias="attention_bias", tied=True, kv_heads="heads",
        window="pattern", window_period=4,
    ),
    # With LayerNorm or a plain MLP
    "stablelm": Family(norm="layer", qkv_bias="use_qkv_bias", qk_norm="heads", qk_norm_if="qk_layernorm"),
    "starcoder2": Family(
        norm="layer", qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", gated=False, tied=True,
        window="all",
    ),
    "phi": Family(
        norm="layer", norms=1, qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True, gated=False,
        kv_heads="heads",
    ),
    "nemotron": Family(
        norm="layer", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", gated=False,
        kv_heads="heads",
    ),
    "arcee": replace(LLAMA, gated=False),
    "gpt2": replace(GPT, positions="n_positions"),
    "gpt_bigcode": replace(GPT, positions="n_positions", kv_heads="multi_query"),
    "gptj": GPTJ,
    "codegen": GPTJ,
    "opt": Family(
        norm="layer", qkv_bias="enable_bias", out_bias="enable_bias", mlp_bias="enable_bias", gated=False, tied=True,
        kv_heads="heads", positions="max_position_embeddings", extra_positions=2,
        fields={"intermediate_size": "ffn_dim"}, defaults={"enable_bias": True},
    ),
    "gpt_neox": Family(
        norm="layer", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias=True, gated=False,
        kv_heads="heads", defaults={"attention_bias": True},
    ),
    "bloom": Family(
        norm="layer", qkv_bias=True, out_bias=True, mlp_bias=True, gated=False, mlp_factor=4, tied=True,
        embedding_norm=True, kv_heads="heads",
        fields={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    ),
    "mpt": Family(
        gated=False, mlp_factor=4, tied=True, kv_heads="heads",
        fields={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    ),
    "falcon": Family(
        norm="layer", norms=1, qkv_bias="bias", out_bias="bias", mlp_bias="bias", gated=False, mlp_factor=4,
        tied=True, kv_heads="falcon",
        fields={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "num_kv_heads",
                "intermediate_size": "ffn_hidden_size"},
    ),
    # Mixtures of experts
    "mixtral": replace(MISTRAL, experts=Experts(), modules=MIXTRAL_MODULES),
    "qwen2_moe": replace(QWEN2, modules=ONE_SHARED, experts=GATED_EXPERTS),
    "qwen3_moe": replace(QWEN3, modules=GATE, experts=QWEN_EXPERTS),
    "olmoe": replace(OLMO, qk_norm="full", modules=GATE, experts=Experts("num_experts")),
    "phimoe": Family(
        norm="layer", qkv_bias="attention_bias", out_bias="attention_bias", head_bias="lm_head_bias", window="all",
        experts=Experts(), modules=MIXTRAL_MODULES,
    ),
    "granitemoe": replace(
        OLMO, modules={"mlp.router": "block_sparse_moe.router"}, experts=Experts(),
    ),
    "deepseek_v2": replace(DEEPSEEK_V2, modules=GATE),
    "deepseek_v3": replace(DEEPSEEK_V3, modules=GATE),
    "kimi_k2": replace(DEEPSEEK_V3, modules=GATE),
    "glm4_moe": Family(
        qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm", modules=GATE,
        experts=replace(DEEPSEEK_EXPERTS, router_bias=True),
    ),
    "minimax_m2": Family(
        qk_norm="full", modules=MIXTRAL_MODULES, experts=Experts(router_bias=True),
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", window="alternate", sinks=True,
        defaults={"attention_bias": True}, experts=Experts(biases=True, router_bias=True),
    ),
    "qwen3_next": replace(HYBRID, modules=ONE_SHARED),
    "qwen3_5_moe_text": replace(HYBRID, modules=ONE_SHARED, experts=replace(GATED_EXPERTS, layers="all")),
    "qwen3_vl_moe_text": replace(QWEN3, window="", modules=GATE, experts=QWEN_EXPERTS),
    "deepseek": replace(LLAMA, mlp_bias=False, modules=GATE, experts=DEEPSEEK_EXPERTS),
    "dots1": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", window="qwen",
        modules=GATE, experts=replace(DEEPSEEK_EXPERTS, router_bias=True),
    ),
    "ernie4_5_moe": Family(
        qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True, modules=GATE,
        experts=Experts(
            "moe_num_experts", "moe_k", "moe_intermediate_size", "ernie", shared="counted",
            shared_count="moe_num_shared_experts", router_bias=True,
        ),
    ),
    "glm4_moe_lite": replace(DEEPSEEK_V3, modules=GATE),
    "llama4_text": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", mlp_width="intermediate_size_mlp",
        window="pattern", window_period=4, window_field="attention_chunk_size",
        experts=Experts(layers="llama4", shared="intermediate_size"),
        modules={"mlp.shared_experts": "feed_forward.shared_expert", "mlp": "feed_forward"},
    ),
}  # fmt: skip

# Models with pictures or sound around a language model: the decode step reads `text_config` only.
# Their model_type, where the inner config leaves its own out.
WRAPPERS = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text", "qwen3_vl": "qwen3_vl_text",
            "qwen3_vl_moe": "qwen3_vl_moe_text",
            "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}  # fmt: skip
