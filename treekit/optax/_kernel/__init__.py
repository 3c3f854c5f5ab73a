"""What is a transformation of treekit, and what crosses its boundary? It imports no wrapper and no factory.

- `transformation`: what is it, and what is the core that runs inside it? `types`: what are their types?
- `boundary`: what do `init` and `update` do around a core? `crossing`: how do trees go in and come out of an update?
  `gradients`: which leaf has which gradient? `missing`: what does one that is missing leave as it was?
- `trained`: what is trained? `holes`: what stands for params that are not there? `extra_args`: how are extra arguments
  seen inside? `taken`: which of them does nothing take?
- `passed`: which params is a function, such as a mask, asked about? `leaf_group`: which, in a core that sees a list of
  some leaves?
- `preserve`: which dtype, structure and shape have results? `sharding`: which sharding has the state?
- `known_states`: what is known of a state by its class? `state_map`: whose array is this in a state?
  `sliced`: what is the state for some of the params?
- `misfit`: where does a state not fit? `notes`: which transformation of Optax raised an error, and for which leaf?
"""
