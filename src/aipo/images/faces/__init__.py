"""Faces in photographs."""

from aipo.images.faces.detector import Face, find_faces

__all__ = ["Face", "find_faces"]
