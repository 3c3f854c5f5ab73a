"""What is a transformation of treekit, and what crosses its boundary? It knows no wrapper and no factory.

- `transformation`: what is it, and what runs inside it?
- `boundary`: what is trained, and how do trees go in and come out? `extra_args`: and extra arguments?
- `preserve`: which dtype, structure and shape have results? `sharding`: which sharding has the state?
- `state_map`: whose array is this in a state? `misfit`: where does a state not fit?
- `notes`: which transformation of Optax raised an error, and for which leaf?
- `in_place`: does this step run, or not, in the memory of what it changes?
- `releases`: what does not every release of Optax have?
"""
