"""The paper's evaluation as a benchmark that can be run, stopped, resumed and extended: `aipo bench`.

protocol  what is measured: tasks, weights, methods
pictures  on which images
work      one chunk of images with one prior and task: their measurements, and the starts that methods share
methods   how each method solves a chunk, at every lam
store     rows of results, one file for each chunk and method
runner    does what is missing
cells     from rows to numbers: means over images that all methods have
tables    of those numbers
verdicts  what of the paper's claim holds, counted
figures   curves, traces, pictures side by side
summary   writes all of that into files
"""
