"""What is a transformation of treekit, and what crosses its boundary? It imports no wrapper and no factory.

What a transformation is:

- `transformation`: what is it, and what is the core that runs inside it?
- `types`: what are the types of both, to type checkers?
- `boundary`: what do `init` and `update` do around a core?
- `crossing`: how do trees go into an update, and come out of it?

What a core receives:

- `trained`: which arrays of the params are trained?
- `check_params`: what may a user mistake for params?
- `gradients`: which leaf has which gradient?
- `holes`: what stands for params that are not there?
- `passed`: which params is a function, such as a mask, asked about?
- `leaf_group`: which params, in a core that sees a list of some leaves?
- `extra_args`: how are extra arguments seen inside?
- `taken`: which of them does nothing take?

What a core returns:

- `preserve`: which dtype, structure and shape have results?
- `missing`: what does a missing gradient leave as it was?
- `sharding`: which sharding has the state?
- `known_states`: what is known of a state by its class?
- `state_map`: whose array is this in a state?
- `sliced`: what is the state for some of the params?
- `misfit`: where does a state not fit?
- `notes`: which transformation of Optax raised an error, and for which leaf?
"""
