"""What is a transformation of treekit, and what crosses its boundary? It imports no wrapper and no factory.

- `transformation`: what is it, and what is the core that runs inside it? `types`: what are their types?
- `holes`: what stands for params that are not there? `trained`: what is trained?
- `boundary`: what do `init` and `update` do around a core? `crossing`: how do trees go in and come out of an update?
  `extra_args`: and extra arguments?
- `preserve`: which dtype, structure and shape have results? `sharding`: which sharding has the state?
- `known_states`: what is known of a state by its class? `state_map`: whose array is this in a state?
- `state_values`: which values has a state for the params? `misfit`: where does it not fit?
- `notes`: which transformation of Optax raised an error, and for which leaf?
- `in_place`: does this step run, or not, in the memory of what it changes?
- `releases`: what does not every release of Optax have?
"""
