//! The dashboard for Grafana: its queries, its grid, and the picture of it in the documentation.
//!
//! `cargo xtask figures` draws the picture again.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;

use super::{read, root};

const PICTURE: &str = "docs/figures/grafana.svg";
/// Columns of Grafana's grid.
const COLUMNS: i64 = 24;
/// Width of a column, and height of a row of panels and of a heading, in pixels.
const COLUMN: i64 = 30;
const LINE: i64 = 9;
const HEADING: i64 = 30;

pub(super) fn dashboard() -> Value {
    serde_json::from_str(&read("dist/grafana/sluicegate.json")).unwrap()
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().unwrap()
}

/// The title and the query of every target, with values for its variables.
pub(super) fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in panels(dashboard) {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = with_values(target["expr"].as_str().unwrap());
            queries.push((title.to_owned(), query));
        }
    }
    queries
}

fn with_values(query: &str) -> String {
    let query = query.replace("$__rate_interval", "10s").replace("$job", "sluicegate");
    let query = query.replace("$instance", ".*");
    assert!(!query.contains('$'), "{query}");
    query
}

/// The metric and the label of the values of a variable, and the number of values of two servers.
pub(super) fn variables(dashboard: &Value) -> Vec<(String, String, usize)> {
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter(|it| it["type"] == "query").map(|it| &it["query"]["query"]);
    let parsed = queries.map(|query| {
        let inner = query.as_str().unwrap().strip_prefix("label_values(").unwrap();
        let (metric, label) = inner.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        let expected = if label == "instance" { 2 } else { 1 };
        (with_values(metric), label.to_owned(), expected)
    });
    parsed.collect()
}

fn grid(panel: &Value, name: &str) -> i64 {
    panel["gridPos"][name].as_i64().unwrap()
}

#[test]
fn grafana_dashboard_can_be_imported() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39, "Grafana 11");
    assert!(dashboard.get("id").is_none_or(Value::is_null), "an id belongs to one Grafana");
    let mut ids: Vec<_> = panels(&dashboard).iter().map(|it| it["id"].as_u64().unwrap()).collect();
    ids.dedup();
    assert!(ids.is_sorted() && ids.len() == panels(&dashboard).len(), "{ids:?}");
    let mut used = Vec::new();
    for panel in panels(&dashboard) {
        let title = &panel["title"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| grid(panel, name));
        assert!(x >= 0 && w > 0 && h > 0 && x + w <= COLUMNS, "{title}");
        for (column, line) in
            (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line)))
        {
            assert!(!used.contains(&(column, line)), "{title} lies on another panel");
            used.push((column, line));
        }
        if panel["type"] != "row" {
            assert!(panel["description"].as_str().is_some_and(|it| !it.is_empty()), "{title}");
            let targets = panel["targets"].as_array().unwrap();
            let sources = targets.iter().chain([panel]).map(|it| &it["datasource"]["uid"]);
            assert!(sources.into_iter().all(|it| it == "${datasource}"), "{title}");
        }
    }
}

/// The panels at their places, as SVG.
fn draw(dashboard: &Value) -> String {
    let mut heights = BTreeMap::new();
    for panel in panels(dashboard) {
        let height = if panel["type"] == "row" { HEADING } else { grid(panel, "h") * LINE };
        heights.insert(grid(panel, "y"), height);
    }
    let mut end = 44;
    let mut tops = BTreeMap::new();
    for (y, height) in heights {
        tops.insert(y, end);
        end += height;
    }
    let width = COLUMNS * COLUMN;
    let height = end + 6;
    let title = dashboard["title"].as_str().unwrap();
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" class="sg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="sg-title">
<title id="sg-title">Layout of the dashboard {title} for Grafana</title>
<style>.sg{{--paper:#ffffff;--panel:#f6f8fa;--ink:#1f2328;--quiet:#59636e;--grid:#d8dee4}}@media (prefers-color-scheme:dark){{.sg{{--paper:#0d1117;--panel:#161b22;--ink:#e6edf3;--quiet:#9198a1;--grid:#30363d}}}}.sg text{{font:13px system-ui,sans-serif;fill:var(--quiet)}}.sg .title{{font-size:17px;font-weight:600;fill:var(--ink)}}.sg .row{{font-weight:600;fill:var(--ink)}}.sg .paper{{fill:var(--paper)}}.sg .panel{{fill:var(--panel);stroke:var(--grid)}}</style>
<rect class="paper" width="{width}" height="{height}"/>
<text class="title" text-anchor="start" x="16" y="29">{title}</text>
"##
    );
    for panel in panels(dashboard) {
        let title = panel["title"].as_str().unwrap().replace('&', "&amp;").replace('<', "&lt;");
        let top = tops[&grid(panel, "y")];
        let (left, wide) = (grid(panel, "x") * COLUMN, grid(panel, "w") * COLUMN);
        if panel["type"] == "row" {
            writeln!(
                svg,
                r#"<text class="row" text-anchor="start" x="16" y="{}">{title}</text>"#,
                top + 21
            )
            .unwrap();
            continue;
        }
        let high = grid(panel, "h") * LINE;
        let rect = format!(
            r#"x="{}" y="{}" width="{}" height="{}""#,
            left + 3,
            top + 3,
            wide - 6,
            high - 6
        );
        writeln!(svg, r#"<rect class="panel" {rect} rx="3"/>"#).unwrap();
        let place =
            format!(r#"text-anchor="middle" x="{}" y="{}""#, left + wide / 2, top + high / 2 + 4);
        writeln!(svg, r#"<text class="key" {place}>{title}</text>"#).unwrap();
    }
    svg + "</svg>\n"
}

#[test]
fn grafana_picture_has_the_panels_of_the_dashboard() {
    let drawn = draw(&dashboard());
    if std::env::var_os("SLUICEGATE_BLESS").is_some() {
        fs::write(root().join(PICTURE), &drawn).unwrap();
    }
    assert!(drawn == read(PICTURE), "{PICTURE} has changed: `cargo xtask figures` draws it");
    assert!(read("docs/metrics.md").contains("](figures/grafana.svg)"));
}
