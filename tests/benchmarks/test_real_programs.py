"""The recipes of public programs: what can be said of them without their clones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.real_programs.__main__ import HERE, Failed, set_up
from benchmarks.real_programs.programs import RECIPES
from benchmarks.real_programs.recipe import Recipe

LISTED = {line.split("\t")[0] for line in (HERE.parent / "ecosystem.tsv").read_text().splitlines()}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_names_what_there_is(recipe: Recipe) -> None:
    assert recipe.repository in LISTED
    assert all((HERE / "stubs" / stub).is_dir() for stub in recipe.stubs)
    assert all(before != after for changes in recipe.replace.values() for before, after in changes)


def test_names_are_unique() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES) >= 10


def test_a_clone_is_copied_changed_and_prepared(tmp_path: Path) -> None:
    folder = tmp_path / "clones" / "name" / "part"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("layers = 12\n")

    def prepare(place: Path) -> None:
        (place / "data.json").write_text(json.dumps([1]))

    recipe = Recipe("it", "owner/name", "train.py", "part", prepare, {"train.py": (("= 12", "= 2"),)})
    old, new = set_up(recipe, tmp_path / "clones", tmp_path / "work")
    for side in (old, new):
        assert (side / "train.py").read_text() == "layers = 2\n" and (side / "data.json").exists()
    assert (folder / "train.py").read_text() == "layers = 12\n"
    wrong = Recipe("it", "owner/name", "train.py", "part", replace={"train.py": (("= 13", "= 2"),)})
    with pytest.raises(Failed, match="has no '= 13'"):
        set_up(wrong, tmp_path / "clones", tmp_path / "work")
