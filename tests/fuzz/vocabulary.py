"""The words of the programs: leaves, transformations, and what is put around these. `o` is Optax or treekit.optax."""


def words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()).split(" | "))


FLOATS = words("""
numbers('float32', 2, 3) | numbers('float32', 3) | numbers('float32') | numbers('float32', 0) | numbers('float32', 0, 3)
""")
INEXACT = FLOATS[:3] + words("""
numbers('bfloat16', 2, 3) | numbers('bfloat16', 3) | numbers('float16', 3) | numbers('float8_e4m3fn', 3) |
numbers('complex64', 3) | numbers('complex64') | np.ones(3, np.float32) | np.ones(3) | np.float64(0.5) |
np.float32(0.5) | jnp.asarray(0.5) | jnp.full(3, 0.5) | 0.5
""")
OTHERS = words("""
3 | True | 0.25 | 1j | jnp.arange(3) | np.arange(3) | np.int32(3) | np.bool_(True) | jnp.array([True, False]) |
numbers('uint8', 3) | jax.random.key(0) | jax.random.PRNGKey(0) | jax.nn.relu | 'name' | object() |
jax.tree_util.Partial(jax.nn.relu) |
Box(numbers('float32', 3)) | Box(numbers('bfloat16', 2, 3)) | jax.new_ref(numbers('float32', 3)) |
jax.new_ref(numbers('bfloat16', 2, 3)) | jax.new_ref(jnp.arange(3))
""")
NOTHING = ("None", "{}", "()", "[]")

# $M is a mask, $L are labels, $S is a seed.
MASKS = ("mask($S)", "mask($S)(params)", "mask($S)(arrays_of(params))", "mask($S, 1)(params)", "True", "False")
LABELS = ("labels($S)", "labels($S)(params)", "labels($S)(arrays_of(params))", "labels($S, 1)(params)", "'a'")
ATOMS = words("""
sgd(0.1) | sgd(0.1, momentum=0.9) | sgd(schedule, momentum=0.9, nesterov=True) | adam(0.1) | adam(schedule) |
adamw(0.1) | adam(0.1, mu_dtype='bfloat16') | adamw(0.1, mask=$M) | lamb(0.1) | lars(0.1) |
lars(0.1, weight_decay_mask=$M) | lion(0.1) | adabelief(0.1) | adagrad(0.1) | rmsprop(0.1) |
rmsprop(0.1, centered=True, momentum=0.9) | radam(0.1) | novograd(0.1) | yogi(0.1) |
adafactor(0.1, min_dim_size_to_factor=2) | sm3(0.1) | rprop(0.1) | noisy_sgd(0.1) | amsgrad(0.1) | adamax(0.1) |
nadamw(0.1) | fromage(0.1) | sign_sgd(0.1) | optimistic_gradient_descent(0.1) | adadelta(0.1) | adan(0.1) |
signum(0.1) | polyak_sgd(0.1) | lbfgs(memory_size=2) | lbfgs(0.1, memory_size=2, linesearch=None) | scale(0.5) |
scale(-1) | scale_by_schedule(schedule) | trace(0.9) | ema(0.9) | ema(0.9, accumulator_dtype='float32') | clip(0.5) |
clip_by_global_norm(0.5) | clip_by_block_rms(0.5) | adaptive_grad_clip(0.1) | add_noise(0.1, 0.5, 0) |
add_decayed_weights(0.1) | add_decayed_weights(0.1, $M) | centralize() | zero_nans() | keep_params_nonnegative() |
apply_every(2) | identity() | set_to_zero() | normalize_by_update_norm() | scale_by_trust_ratio() |
scale_by_param_block_norm() | scale_by_param_block_rms() | transforms.freeze($M) | snapshot('p', lambda p: p) |
inject_hyperparams(o.adamw)(0.1) | inject_hyperparams(o.adamw)(schedule, mask=mask($S)(params)) |
inject_hyperparams(o.sgd)(0.1, momentum=0.9) | inject_hyperparams(o.lion)(0.1) | contrib.prodigy(0.1) |
contrib.dog(0.1) | contrib.dowg(0.1) | contrib.dadapt_adamw(0.1) | contrib.momo(0.1) | contrib.momo_adam(0.1) |
contrib.cocob() | contrib.acprop(0.1) | contrib.ademamix(0.1) | contrib.adopt(0.1) | contrib.madgrad(0.1) |
contrib.muon(0.1) | contrib.schedule_free_sgd(0.1) | contrib.schedule_free_adamw(0.1) | contrib.normalize() |
contrib.reduce_on_plateau(patience=1) | contrib.simplified_ademamix(0.1) | contrib.galore(0.1) | chain(of_numbers()) |
scale_by_backtracking_linesearch(3)
""")  # without "o."
# A wrapper whose parts, one or several, stand where the dots are.
WRAPPERS = words("""
o.chain(...) | o.named_chain(...) | o.masked(..., $M) | o.masked(..., $M) | o.partition({...}, $L) |
o.partition({...}, $L) | o.inject_hyperparams(lambda r: o.chain(o.scale(r), ...))(0.5) |
o.inject_hyperparams(lambda r: o.chain(o.scale(r), ...))(schedule) | o.MultiSteps(..., 2).gradient_transformation() |
o.MultiSteps(..., lambda count: 1 + count % 2, use_grad_mean=False).gradient_transformation() |
o.MultiSteps(..., 2, should_skip_update_fn=o.skip_not_finite).gradient_transformation() | o.apply_if_finite(..., 2) |
o.conditionally_transform(..., lambda step, **_: step % 2 == 0) |
o.conditionally_mask(..., lambda step, **_: step % 2 == 0) |
o.transforms.selective_transform(..., freeze_mask=mask($S)(params)) | o.flatten(...) | o.contrib.mechanize(...) |
o.contrib.split_real_and_imaginary(...) | o.with_extra_args_support(...)
""")
SEVERAL = ("o.chain(", "o.named_chain(", "o.inject_hyperparams(")

# No-op wrappers.
CHANGE_NOTHING = words("""
o.chain(...) | o.chain(o.identity(), ...) | o.named_chain(('only', ...)) | o.masked(..., True) |
o.masked(..., lambda p: jax.tree.map(lambda _: True, p)) | o.masked(..., jax.tree.map(lambda _: True, params)) |
o.partition({'a': ...}, 'a') |
o.partition({'a': ..., 'b': o.set_to_zero()}, lambda p: jax.tree.map(lambda _: 'a', p)) |
o.MultiSteps(..., 1).gradient_transformation() | o.inject_hyperparams(lambda: ...)() |
o.transforms.selective_transform(..., freeze_mask=False) |
o.conditionally_transform(..., lambda step, **_: step >= 0) | o.conditionally_mask(..., lambda step, **_: step >= 0) |
o.with_extra_args_support(...) | o.chain(..., o.transforms.freeze(False))
""")

# Programs that are not drawn, as Optax or treekit refuses them, or as Optax means something else.
NOT_DRAWN = (
    "split_real_and_imaginary.*split_real_and_imaginary",  # the inner one joins what the outer has split
    "of_numbers.* on .*float8",  # a Python number in a state becomes an array, which JAX does not add to a float8
    "(galore|novograd).* with '",  # of Optax, fail in jit where gradients have another dtype than the params
    "muon.* with '",  # computes in the dtype of the gradients, and rounds otherwise if it is compiled
    "complex.* with .*(nan|inf)",  # complex arithmetic makes NaN of inf, wherever it is
)
