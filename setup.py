"""Packages of the wheel: `bertjax`, and the top-level `configs/` as `bertjax.configs`."""

from setuptools import find_packages, setup

_DATA = ("bertjax.launchers", "bertjax.reports.assets")
"""Folders without Python files."""

setup(
    packages=[*find_packages(include=["bertjax*"]), "bertjax.configs", *_DATA],
    package_dir={"bertjax.configs": "configs"},
    package_data={folder: ["*"] for folder in _DATA},
)
