"""How a dashboard is described, and what Grafana gets of it.

A dashboard is rows of panels, a panel one or more queries. Panels take their place in order: four numbers or two or
three charts a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_CHART_HEIGHT, _NUMBER_HEIGHT = 8, 4


@dataclass(frozen=True)
class Panel:
    """`queries`: expression and legend. `kind`: timeseries, or stat for one number."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""
    kind: str = "timeseries"
    width: int = 8
    red_above: float | None = None
    red_below: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """`of`: a metric that only what is shown has; its instances can be chosen."""

    uid: str
    title: str
    of: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def chart(title: str, unit: str, *queries: tuple[str, str], text: str = "", width: int = 8) -> Panel:
    return Panel(title, unit, queries, text, width=width)


def number(title: str, unit: str, query: str, text: str = "", **limits: float) -> Panel:
    return Panel(title, unit, ((query, ""),), text, "stat", 6, **limits)


def rate(metric: str, by: str = "instance", more: str = "") -> str:
    return f'sum by ({by}) (rate({metric}{{instance=~"$instance"{more}}}[$__rate_interval]))'


def value(metric: str, by: str = "instance", more: str = "", how: str = "sum") -> str:
    return f'{how} by ({by}) ({metric}{{instance=~"$instance"{more}}})'


def p99(metric: str, more: str = "", quantile: str = "0.99") -> str:
    """Of a summary in milliseconds."""
    return value(metric, more=f', success="true", quantile="{quantile}"{more}', how="max")


def histogram_p99(metric: str, by: str) -> str:
    """Of a histogram of seconds."""
    return f"histogram_quantile(0.99, {rate(metric + '_bucket', f'{by}, le')})"


def render(dashboard: Dashboard) -> dict[str, Any]:
    """In Grafana's JSON."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["bookgate"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _instances(dashboard.of)]},
        "links": [
            {"title": "Bookgate", "type": "dashboards", "tags": ["bookgate"], "asDropdown": True, "includeVars": False}
        ],
        "panels": list(_panels(dashboard)),
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _instances(metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, instance)"
    return {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "instances"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in dashboard.rows:
        number += 1
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top, left = top + 1, 0
        for panel in panels:
            height = _NUMBER_HEIGHT if panel.kind == "stat" else _CHART_HEIGHT
            if left + panel.width > _COLUMNS:
                left, top = 0, top + height
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    if panel.kind == "timeseries":
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **_thresholds(panel)}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    if panel.red_above is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above}]
    elif panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    else:
        steps = [{"color": "text", "value": None}]
    return {"thresholds": {"mode": "absolute", "steps": steps}}
