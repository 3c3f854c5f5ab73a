"""Types of treekit's arguments, for your annotations; they exist for type checkers and at run time.

`GradientTransformation` needs Optax; the others do not import it.
"""

from typing import TYPE_CHECKING

from treekit._base.types import FilterSpec as FilterSpec
from treekit._base.types import Labels as Labels
from treekit._base.types import LeafPredicate as LeafPredicate
from treekit._base.types import Mask as Mask
from treekit._base.types import TransformationLike as TransformationLike
from treekit._types.signatures import Batched as Batched
from treekit._types.signatures import Typed as Typed

__all__ = [
    "Batched",
    "FilterSpec",
    "GradientTransformation",
    "Labels",
    "LeafPredicate",
    "Mask",
    "TransformationLike",
    "Typed",
]

if TYPE_CHECKING:
    from typing import TypeAlias

    from treekit.optax._kernel.transformation import GradientTransformation as _GradientTransformation
    from treekit.optax._kernel.types import S as _S  # the parameter of that class, with its default

    # An alias, since `pyright --verifytypes` does not know a class whose base is in a package without py.typed.
    GradientTransformation: TypeAlias = _GradientTransformation[_S]
else:

    def __getattr__(name: str) -> type:
        if name == "GradientTransformation":
            from treekit.optax._kernel.transformation import GradientTransformation

            return GradientTransformation
        from treekit._missing import no_attribute

        raise no_attribute(__name__, name)
