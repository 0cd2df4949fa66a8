"""Packages of the wheel: `bertjax`, and the top-level `configs/` as `bertjax.configs`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["bertjax*"]), "bertjax.configs"],
    package_dir={"bertjax.configs": "configs"},
    package_data={"bertjax": ["launchers/*", "reports/assets/*"]},
)
