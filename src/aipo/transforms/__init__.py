"""Fixed changes of basis: opponent colors, Haar bands, cosine frequencies, and conjugate gradients on top of them."""
