"""`aipo priors`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from aipo.cli.common import JsonOption
from aipo.cli.terminal import print_card, print_json, print_table
from aipo.errors import InputError

__all__ = ["priors_app"]

priors_app = typer.Typer(epilog="Example: aipo priors show celeba64-realnvp-small")


@priors_app.callback(invoke_without_command=True)
def priors(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the embedded priors, or show the card of one."""
    if ctx.invoked_subcommand:
        if as_json:
            raise InputError(f"put --json after {ctx.invoked_subcommand}")
        return
    from aipo.priors.zoo import load_prior, prior_names

    rows = [_prior_row(name, load_prior(name).card) for name in prior_names()]
    if as_json:
        print_json(rows)
    elif rows:
        header = ["name", "model", "params", "size", "image", "bits/dim", "license"]
        print_table(header, [_prior_cells(row) for row in rows], wide=6)
    else:
        print("No prior comes with this installation; train one, or give a file with --prior.")


@priors_app.command(epilog="Example: aipo priors show celeba64-realnvp-small")
def show(
    prior: Annotated[str, typer.Argument(metavar="NAME|FILE", help="An embedded prior, or a .safetensors file.")],
    as_json: JsonOption = False,
) -> None:
    """Print the card of a prior: what it is, what it was trained on, how good it is, and its license."""
    from aipo.priors.zoo import load_prior

    card = load_prior(prior).card
    if as_json:
        print_json(card)
    else:
        print_card(card)


def _prior_row(name: str, card: dict[str, Any]) -> dict[str, Any]:
    from aipo.priors import zoo

    return {
        "name": name,
        "architecture": card["architecture"],
        "parameters": card.get("parameters"),
        "bytes": (Path(zoo.__file__).parent / f"{name}.safetensors").stat().st_size,
        "image_shape": card["config"].get("image_shape"),  # None for any
        "bits_per_dim_val": card["metrics"].get("bits_per_dim_val"),
        "license": card["license"],
    }


def _prior_cells(row: dict[str, Any]) -> list[str]:
    parameters, bits = row["parameters"], row["bits_per_dim_val"]
    return [
        row["name"],
        row["architecture"],
        "-" if parameters is None else f"{parameters / 1e6:.2f} M",
        f"{row['bytes'] / 1e6:.1f} MB",
        "x".join(map(str, row["image_shape"][1:])) if row["image_shape"] else "any",
        "-" if bits is None else f"{bits:.3f}",
        textwrap.shorten(row["license"], 32, placeholder="..."),
    ]
