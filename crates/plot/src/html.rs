//! A page of HTML that needs nothing else: no script, no font, no network.

use std::fmt::Write;

use crate::{figure::Figure, svg::svg, text::escape};

/// A page with tables and a figure.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Title.
    pub title: String,
    /// Paragraphs below the title.
    pub paragraphs: Vec<String>,
    /// In their order.
    pub tables: Vec<Table>,
    /// Below the tables.
    pub figure: Figure,
    /// Tables below the figure, folded away.
    pub details: Vec<Table>,
}

/// A table; the first cell of a row is its heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Title of the table.
    pub caption: String,
    /// Headings of the columns.
    pub heading: Vec<String>,
    /// The rows, each as long as the heading.
    pub rows: Vec<Vec<String>>,
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
background:#fff;color:#1f2328}\
h1{font-size:1.5rem}figure{margin:2rem 0;overflow-x:auto}figure svg{max-width:100%;height:auto}\
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}\
caption{text-align:left;font-weight:600;padding:.25rem 0}\
th,td{padding:.25rem .75rem;border-bottom:1px solid #d8dee4;text-align:right;white-space:nowrap}\
th:first-child{text-align:left;padding-left:0}tbody th{font:14px ui-monospace,monospace}\
@media (max-width:560px){table{font-size:14px}th,td{padding:.25rem .4rem}tbody th{font-size:12px}}\
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}}";

impl Page {
    /// The page as text.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n"
        );
        for paragraph in &self.paragraphs {
            let _ = writeln!(out, "<p>{}</p>", escape(paragraph));
        }
        for table in &self.tables {
            table.write(&mut out);
        }
        let _ = writeln!(
            out,
            "<figure>\n{}<figcaption>{}</figcaption>\n</figure>",
            svg(&self.figure),
            escape(&self.figure.description)
        );
        for table in &self.details {
            let _ = writeln!(out, "<details>\n<summary>{}</summary>", escape(&table.caption));
            table.write(&mut out);
            out += "</details>\n";
        }
        out += "</main>\n</body>\n</html>\n";
        out
    }
}

impl Table {
    fn write(&self, out: &mut String) {
        // A wide table scrolls by itself, by keyboard too.
        *out += "<div class=\"wide\" tabindex=\"0\">\n<table>\n";
        let _ = writeln!(out, "<caption>{}</caption>", escape(&self.caption));
        *out += "<thead><tr>";
        for heading in &self.heading {
            let _ = write!(out, "<th scope=\"col\">{}</th>", escape(heading));
        }
        *out += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            *out += "<tr>";
            for (index, cell) in row.iter().enumerate() {
                let cell = escape(cell);
                let _ = match index {
                    0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(out, "<td>{cell}</td>"),
                };
            }
            *out += "</tr>\n";
        }
        *out += "</tbody>\n</table>\n</div>\n";
    }
}
