"""Which packages a distribution holds: the top-level directories, under the suite's one import name."""

from setuptools import find_packages, setup

NAME = "grpo_replications"
DIRECTORIES = ("shared", "synthetic", "replications")

found = find_packages(include=[pattern for name in DIRECTORIES for pattern in (name, f"{name}.*")])
setup(
    packages=[NAME, *(f"{NAME}.{package}" for package in found)],
    package_dir={NAME: NAME, **{f"{NAME}.{name}": name for name in DIRECTORIES}},
    package_data={
        f"{NAME}.replications": ["**/*.toml", "**/*.csv", "**/*.md", "template/*"],
        f"{NAME}.shared": ["**/*.csv", "**/*.md", "harness/templates/*", "training/launch/*.yaml"],
    },
)
