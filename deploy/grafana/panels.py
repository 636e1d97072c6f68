"""What Grafana's JSON needs said, said once: panels, rows, variables, and where each panel goes.

Everything returns plain dictionaries. A panel carries its width and height under `size` until `board` has given it a place.
"""

from string import ascii_uppercase

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

GREEN, ORANGE, RED = "green", "orange", "red"
LIGHT_BLUE, GREY = "light-blue", "#8e8e8e"


def target(expr, legend="", **more):
    """One query. `instant` and `format` go into `more`."""
    return {"expr": expr, "legendFormat": legend, **more}


def with_ids(targets):
    """Grafana knows queries of a panel by letters, and so do the overrides below."""
    targets = [target(one) if isinstance(one, str) else one for one in targets]
    return [
        {"refId": letter, "datasource": SOURCE, "editorMode": "code", "range": not one.get("instant", False), **one}
        for letter, one in zip(ascii_uppercase, targets, strict=False)
    ]


def steps(*pairs):
    """Thresholds: a colour from a value on, the first one from the bottom."""
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for colour, value in pairs]}


def override(matcher, options, **properties):
    named = {name.replace("__", "."): value for name, value in properties.items()}
    return {
        "matcher": {"id": matcher, "options": options},
        "properties": [{"id": name, "value": value} for name, value in named.items()],
    }


def fixed(colour):
    return {"mode": "fixed", "fixedColor": colour}


def coloured(name, colour):
    return override("byName", name, color=fixed(colour))


def on_the_right(letter, colour=LIGHT_BLUE, unit="short"):
    """A second axis, dashed. Without its own thresholds, or the limit would be drawn on that scale too."""
    return override(
        "byFrameRefID",
        letter,
        color=fixed(colour),
        unit=unit,
        custom__axisPlacement="right",
        custom__lineStyle={"fill": "dash", "dash": [10, 10]},
        custom__fillOpacity=0,
        custom__thresholdsStyle={"mode": "off"},
    )


def as_reference(letter):
    """What was recorded: thin dots, a colour of its own for each name."""
    return override(
        "byFrameRefID",
        letter,
        color={"mode": "palette-classic-by-name"},
        custom__lineStyle={"fill": "dot", "dash": [2, 8]},
        custom__lineWidth=2,
        custom__fillOpacity=0,
    )


def panel(kind, title, text, targets, size, defaults, options, overrides=(), **more):
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": SOURCE,
        "size": size,
        "targets": with_ids(targets),
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
        **more,
    }


def stat(title, text, expr, unit="short", *, width=6, height=4, legend="", graph="area", colours=None, words="value",
         mappings=(), decimals=None, nothing=None):
    """One large figure; with `graph="area"` its recent course behind it."""
    defaults = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": colours or steps((GREEN, None)), "mappings": list(mappings)}
    if decimals is not None:
        defaults["decimals"] = decimals
    if nothing is not None:
        defaults["noValue"] = nothing
    options = {
        "colorMode": "value",
        "graphMode": graph,
        "justifyMode": "center",
        "orientation": "auto",
        "textMode": words,
        "wideLayout": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel("stat", title, text, [target(expr, legend)], (width, height), defaults, options)


def series(title, text, targets, unit, *, width=12, height=9, limit=None, stacked=False, low=0, high=None, overrides=(),
           fill=10, nothing=None, bars=False, legend="list"):
    """Curves over time. `limit` is an objective: a red line and everything above it shaded."""
    custom = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1 if bars else 3,
        "fillOpacity": 60 if bars else 30 if stacked else fill,
        "showPoints": "never",
        "spanNulls": 30_000,
        "axisPlacement": "left",
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if limit is None else "line+area"},
    }
    defaults = {
        "unit": unit,
        "min": low,
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "thresholds": steps((GREEN if limit is None else "transparent", None), *([] if limit is None else [(RED, limit)])),
    }
    if high is not None:
        defaults["max"] = high
    if nothing is not None:
        defaults["noValue"] = nothing
    options = {
        "legend": {"displayMode": legend, "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, text, targets, (width, height), defaults, options, overrides)


def table(title, text, expr, columns, *, width=12, height=9):
    """What is so now, a line each. `columns` names the labels that stay, in order."""
    keep = {
        "id": "organize",
        "options": {
            "indexByName": {name: at for at, name in enumerate(columns)},
            "renameByName": columns,
            "includeByName": dict.fromkeys(columns, True),
        },
    }
    options = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "countRows": False}}
    defaults = {"unit": "short", "noValue": "none", "custom": {"align": "auto"}}
    query = target(expr, instant=True, format="table")
    return panel("table", title, text, [query], (width, height), defaults, options, transformations=[keep])


def row(title, *panels, collapsed=False):
    """A heading that can be folded with what is under it."""
    return {"title": title, "panels": list(panels), "collapsed": collapsed}


def placed(panels, top):
    """Left to right, on to the next line when one is full; and where the next thing may begin."""
    x, y, deepest = 0, top, 0
    for one in panels:
        width, height = one.pop("size")
        if x + width > WIDTH:
            x, y, deepest = 0, y + deepest, 0
        one["gridPos"] = {"x": x, "y": y, "w": width, "h": height}
        x, deepest = x + width, max(deepest, height)
    return y + deepest


def variable(name, label, kind, query, default=None, *, several=False):
    made = {"name": name, "label": label, "type": kind, "query": query, "hide": 0, "skipUrlSync": False}
    if kind == "datasource":
        return {**made, "regex": "", "refresh": 1, "includeAll": False, "multi": False, "options": [], "current": {}}
    chosen = ("All", "$__all") if several else (default, default)
    return {
        **made,
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "regex": "",
        "sort": 3,
        "includeAll": several,
        "multi": several,
        "options": [],
        "current": {"text": [chosen[0]] if several else chosen[0], "value": [chosen[1]] if several else chosen[1]},
        **({"allValue": ".*"} if several else {}),
    }


def annotation(name, expr, colour, title):
    """A line across every panel when something happened."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": colour,
        "step": "5s",
        "titleFormat": title,
        "target": {"expr": expr, "refId": "Anno"},
    }


def board(uid, title, text, variables, annotations, *rows, span="now-30m"):
    """Rows under each other. The first may have no title: then it is no row, only panels."""
    panels, y, number = [], 0, 0

    def numbered(one):
        nonlocal number
        number += 1
        return {"id": number, **one}

    for one in rows:
        if not one["title"]:
            y = placed(one["panels"], y)
            panels += [numbered(each) for each in one["panels"]]
            continue
        head = numbered({
            "type": "row",
            "title": one["title"],
            "collapsed": one["collapsed"],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            "panels": [],
        })
        panels.append(head)
        end = placed(one["panels"], y + 1)
        under = [numbered(each) for each in one["panels"]]
        if one["collapsed"]:
            head["panels"], y = under, y + 1
        else:
            panels, y = panels + under, end
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["kvlane"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": span, "to": "now"},
        "timezone": "browser",
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m"]},
        "links": [{
            "type": "dashboards", "tags": ["kvlane"], "title": "Kvlane", "asDropdown": False, "icon": "external link",
            "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "", "url": "",
        }],
        "annotations": {"list": annotations},
        "templating": {"list": variables},
        "panels": panels,
    }
