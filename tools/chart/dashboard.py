"""The Grafana dashboard: the rows of ``panels``, turned into the JSON that Grafana imports."""

from __future__ import annotations

import json
from typing import Any

from tools.chart.panels import ROWS, Panel, Row

COLUMNS = 24
"""Of Grafana's grid."""


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def dashboard() -> dict[str, Any]:
    """Grafana's import format, schema version 39 (Grafana 11)."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            }
        )
        top += 1
        left = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left = top + _height(row), 0
            panels.append(_panel(panel, len(panels) + 1, left, top, _height(row)))
            left += panel.width
        top += _height(row)
    return {
        "uid": "forkgate",
        "title": "forkgate",
        "tags": ["forkgate"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), _rollouts()]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _height(row: Row) -> int:
    return 4 if all(panel.kind == "stat" for panel in row.panels) else 8


def _panel(panel: Panel, number: int, left: int, top: int, height: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.told,
        "datasource": source,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": height},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0 if panel.unit == "reqps" else None},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _rollouts() -> dict[str, Any]:
    return {
        "name": "rollout",
        "type": "query",
        "label": "Rollout",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(forkgate_rollout_stage, forkgate_rollout)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
