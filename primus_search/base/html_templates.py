"""Pages from the templates in `templates/`; in HTML every value is escaped unless a template marks it as markup."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def rendered(template: str, /, **values: Any) -> str:
    """The page that a template makes of these values."""
    return environment("primus_search").get_template(template).render(**values)


@lru_cache(maxsize=2)
def environment(package: str) -> "Environment":
    """Templates of a package's folder `templates`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape  # after the first screen

    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["form"] = lambda value, form: format(value, form)
    return environment
