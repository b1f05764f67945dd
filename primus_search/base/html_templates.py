"""Pages from the templates in `templates/`; in HTML every value is escaped unless a template marks it as markup."""

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def rendered(template: str, /, **values: Any) -> str:
    """The page that a template makes of these values."""
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("primus_search", "templates"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["form"] = lambda value, form: format(value, form)
    return environment
