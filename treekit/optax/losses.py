"""Every name of `optax.losses`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optax.losses import binary_dice_loss as binary_dice_loss
    from optax.losses import convex_kl_divergence as convex_kl_divergence
    from optax.losses import cosine_distance as cosine_distance
    from optax.losses import cosine_similarity as cosine_similarity
    from optax.losses import ctc_loss as ctc_loss
    from optax.losses import ctc_loss_with_forward_probs as ctc_loss_with_forward_probs
    from optax.losses import dice_loss as dice_loss
    from optax.losses import generalized_kl_divergence as generalized_kl_divergence
    from optax.losses import hinge_loss as hinge_loss
    from optax.losses import huber_loss as huber_loss
    from optax.losses import kl_divergence as kl_divergence
    from optax.losses import kl_divergence_with_log_targets as kl_divergence_with_log_targets
    from optax.losses import l2_loss as l2_loss
    from optax.losses import log_cosh as log_cosh
    from optax.losses import make_fenchel_young_loss as make_fenchel_young_loss
    from optax.losses import multiclass_generalized_dice_loss as multiclass_generalized_dice_loss
    from optax.losses import multiclass_hinge_loss as multiclass_hinge_loss
    from optax.losses import multiclass_perceptron_loss as multiclass_perceptron_loss
    from optax.losses import multiclass_sparsemax_loss as multiclass_sparsemax_loss
    from optax.losses import ntxent as ntxent
    from optax.losses import perceptron_loss as perceptron_loss
    from optax.losses import poly_loss_cross_entropy as poly_loss_cross_entropy
    from optax.losses import ranking_softmax_loss as ranking_softmax_loss
    from optax.losses import safe_softmax_cross_entropy as safe_softmax_cross_entropy
    from optax.losses import sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy
    from optax.losses import sigmoid_focal_loss as sigmoid_focal_loss
    from optax.losses import smooth_labels as smooth_labels
    from optax.losses import softmax_cross_entropy as softmax_cross_entropy
    from optax.losses import softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels
    from optax.losses import sparsemax_loss as sparsemax_loss
    from optax.losses import squared_error as squared_error
    from optax.losses import triplet_margin_loss as triplet_margin_loss

else:
    import optax.losses as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
