# Stubs of optax.losses.

from collections.abc import Callable
from typing import Any, Protocol

from jax import Array
from jax.typing import ArrayLike

class _MaxFun(Protocol):
    def __call__(self, scores: Any, *args: Any, **kwargs: Any) -> ArrayLike: ...

def convex_kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -100000.0,
) -> Array: ...
def ctc_loss_with_forward_probs(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -100000.0,
) -> tuple[Array, Array, Array]: ...
def generalized_kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array: ...
def kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def kl_divergence_with_log_targets(
    log_predictions: ArrayLike,
    log_targets: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Array: ...
def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Array: ...
def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> Array: ...
def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array: ...
def poly_loss_cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    epsilon: ArrayLike = 2.0,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array: ...
def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array: ...
def sigmoid_focal_loss(
    logits: ArrayLike, labels: ArrayLike, *, alpha: ArrayLike | None = None, gamma: ArrayLike = 2.0
) -> Array: ...
def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None
) -> Array: ...
def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: int | tuple[int, ...] = -1, where: ArrayLike | None = None
) -> Array: ...
def sparsemax_loss(logits: ArrayLike, labels: ArrayLike) -> Array: ...
def make_fenchel_young_loss(max_fun: _MaxFun) -> Callable[..., Array]: ...
def ranking_softmax_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    reduce_fn: Callable[..., ArrayLike] | None = ...,
) -> Array: ...
def cosine_distance(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def cosine_similarity(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def huber_loss(predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: ArrayLike = 1.0) -> Array: ...
def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array: ...
def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array: ...
def squared_error(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array: ...
def binary_dice_loss(
    predictions: ArrayLike, targets: ArrayLike, *, smooth: ArrayLike = 1.0, apply_sigmoid: bool = True
) -> Array: ...
def dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    class_weights: ArrayLike | None = None,
    smooth: ArrayLike = 1.0,
    alpha: ArrayLike = 0.5,
    beta: ArrayLike = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: ArrayLike | None = None,
) -> Array: ...
def multiclass_generalized_dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    smooth: ArrayLike = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> Array: ...
def ntxent(embeddings: ArrayLike, labels: ArrayLike, temperature: ArrayLike = 0.07) -> Array: ...
def triplet_margin_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike,
    axis: int = -1,
    norm_degree: ArrayLike = 2,
    margin: ArrayLike = 1.0,
    eps: ArrayLike = 1e-06,
) -> Array: ...
def smooth_labels(
    labels: ArrayLike, alpha: ArrayLike, *, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None
) -> Array: ...
