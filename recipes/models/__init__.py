"""Language models: what a step must read and compute.

config_file.py           a path or name -> the JSON of its config, with what files beside it tell
config_fields.py         its fields, whatever a family calls them; layer_kinds.py: which layer does what
architectures.py         what each model_type builds, as data
quantization_config.py   what it tells of quantisation -> quantization.py: the format of each matrix
checkpoint.py            what safetensors headers tell of it (tensor_names.py: which tensor is what)
read_model.py            all of that -> model.py: the model
weights.py               every matrix, its role and its bytes (number_formats.py)
layout.py                what a rank of tp, pp and ep has of it
model_bytes.py           weights that a step reads; kv_cache.py: KV cache; flop.py: arithmetic
decode_floor.py          the floor of a decode step: bytes over bandwidth
"""
