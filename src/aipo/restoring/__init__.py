"""The parts of `aipo restore`, in the order in which a run uses them.

    settings  what is asked for, checked, with everything read that all pictures share
    inputs    one picture file to the measurement that the solver sees
    outputs   what is written for a picture, and what may be overwritten
    page      the report of a run, from what was written

`aipo.restore` puts them together.
"""
