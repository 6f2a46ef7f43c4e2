"""What is generated in ``helm/forkgate``: ``make chart`` writes it, ``make check`` fails when it has drifted.

``values.schema.json`` and ``VALUES.md`` come from the comments of ``values.yaml`` and from forkgate's own
configuration schema, so that the chart holds no second copy. ``dashboards/forkgate.json`` comes from
the list of panels in ``panels``.
"""

from __future__ import annotations

from pathlib import Path

CHART = Path(__file__).parents[2] / "helm" / "forkgate"


def render() -> dict[Path, str]:
    """The generated files, for ``tools.check_generated``."""
    from tools.chart import dashboard, schema, table
    from tools.chart.values import read_values

    values = read_values((CHART / "values.yaml").read_text())
    return {
        CHART / "values.schema.json": schema.text(values),
        CHART / "VALUES.md": table.text(values),
        CHART / "dashboards" / "forkgate.json": dashboard.text(),
    }
