"""The paper's evaluation and a fair one, to be run, stopped, resumed and extended: the command `aipo bench`.

protocol   what is measured: experiments, weights, methods
image_set  on which images
chunk      some images with one prior and experiment: their measurements, and the starts that methods share
methods    how each method solves a chunk, at every lam; classical has those without a prior
runner     measures what is missing
cell       what a file of results is about, its name, and whether it is what we wrote
store      rows of results: one file per chunk and method, or all of them packed into one
analysis   from rows to means, tables, findings and figures
"""
