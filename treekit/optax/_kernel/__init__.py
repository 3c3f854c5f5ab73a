"""The mechanisms from which every wrapper is composed. Read the files in this order; each answers one question.

1. `transformation`: what is a transformation of treekit, and what is its core?
2. `boundary`: how does an update get from raw models to trees of arrays, and back? `crossing` has the trees of one
   update in both forms.
3. `selection`: how does a transformation run on some of the leaves? `resolve_masks` decides on which.
4. `preserve_dtypes`: how do state and updates keep dtype and structure? `sharding` keeps sharding.
5. `state_map`: which array of a state belongs to which parameter, and what is it?
6. `step_if`: how does a step run only if a flag is true? `treekit/_jaxpr/in_place.py` has the loops.
7. `diagnose`: what is wrong with the arguments of an update that failed?
"""
