"""The names a user can write, in one place that loads neither torch nor ray.

Each is held equal to the registry that implements it by a test.
"""

from __future__ import annotations

from typing import Literal, get_args

Objective = Literal["hlm", "slm", "dm", "fula", "dm_lstsq", "identity"]
Protocol = Literal["standard", "invariance", "noise", "foreign", "iris_front", "iris_end"]
Control = Literal["class_noise"]
RecipeName = Literal["standard", "robust", "simclr", "untrained"]
MarkerKind = Literal["pixel", "noise"]
MarkerPlace = Literal["random", "per_class"]
Augment = Literal["none", "flip_crop", "flip_resized_crop"]
Init = Literal["lstsq", "random", "identity"]
Schedule = Literal["plateau", "step"]
IriRule = Literal["adam", "sign"]
Kind = Literal["map", "map_last", "tokens", "vector"]
Source = Literal["digits", "cifar10", "cifar100", "imagefolder", "idx", "npz", "parquet"]
Preset = Literal["controlled", "published"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
TRAINED_OBJECTIVES: tuple[Objective, ...] = ("hlm", "slm", "dm", "fula")
"""The four of the method; of the others T follows without any training step."""
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
CONTROLS: tuple[Control, ...] = get_args(Control)
RECIPES: tuple[RecipeName, ...] = get_args(RecipeName)
MARKER_KINDS: tuple[MarkerKind, ...] = get_args(MarkerKind)
AUGMENTS: tuple[Augment, ...] = get_args(Augment)
INITS: tuple[Init, ...] = get_args(Init)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
IRI_RULES: tuple[IriRule, ...] = get_args(IriRule)
KINDS: tuple[Kind, ...] = get_args(Kind)
SOURCES: tuple[Source, ...] = get_args(Source)
PRESETS: tuple[Preset, ...] = get_args(Preset)
CUT_SETS: tuple[str, ...] = ("blocks", "stages", "paper", "all")

# Uniform noise has no labels, so hard label matching cannot be trained on it (method: protocols).
UNLABELLED_PROTOCOLS: frozenset[Protocol] = frozenset({"noise"})
# Protocols that give IRIs to one side and their images to the other.
ONE_SIDED_PROTOCOLS: frozenset[Protocol] = frozenset({"iris_front", "iris_end"})
# Protocols that use IRIs, of the front itself or of an untrained one, on one side at least.
IRI_PROTOCOLS: frozenset[Protocol] = frozenset({"invariance", "foreign", "iris_front", "iris_end"})
