from typing import Any

from optax import MaskedNode as MaskedNode
from optax import PartitionState as PartitionState

def __getattr__(name: str) -> Any: ...
