"""A file in, a file out: what `aipo restore`, `aipo corrupt` and `aipo demo` do.

tasks      what can have happened to a picture: one list, free of torch
operators  the operator of a task
command    the command line that does the same again
settings   what is asked for, checked, with everything read that all images share
listing    which files there are
inputs     one file to the measurement that the solver sees
solve      measurements to restorations
record     what is known about a restoration, as a type and as JSON
strip      the restorations over lam, side by side in one file
faces      small faces in a photograph, improved by the prior of faces
classical  what a classical method makes of the same photograph
outputs    what is written for an image, and what may be overwritten
page       the report of a run, from what was written
run        puts these together
corrupt    clean images to files that can be restored
demo       corrupt, restore and compare the sample images
"""
