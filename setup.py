"""Ships hardware/, spaces/ and sweeps/ in the installed package, as data/; pyproject.toml has all else."""

from setuptools import find_namespace_packages, setup

DATA = {
    f"primus_search.data.{folder.replace('/', '.')}": folder
    for folder in (
        "hardware",
        "hardware/bases",
        "hardware/frameworks",
        "hardware/ranges",
        "hardware/sites",
        "hardware/switches",
        "hardware/stacks",
        "hardware/stacks/bases",
        "spaces",
        "spaces/keys",
        "spaces/keys/arguments",
        "spaces/keys/refusals",
        "spaces/models",
        "sweeps",
    )
}

setup(
    packages=[*find_namespace_packages(include=["primus_search*"]), *DATA],
    package_dir=DATA,
    package_data={
        "": ["*.yaml", "*.toml", "*.tsv"],
        "primus_search": ["py.typed"],
        "primus_search.report.page": ["*.js", "*.css"],
        "primus_search.report.page.vendor": ["*"],
        "primus_search.templates": ["*.html", "*.md", "*.svg", "*.txt", "*.xml", "launch/*"],
    },
)
