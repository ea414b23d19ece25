//! Pictures of what a rule does to traffic.
//!
//! A [`Figure`] says what is to be seen: a time axis, and for each policy counts in spans of equal
//! length, lines, and marks. [`svg`] draws it as a file that is light or dark as its reader wishes,
//! [`Terminal`] in characters of braille, and [`Page`] puts it on a page of HTML that needs nothing
//! else. Nothing here knows of a policy, reads a clock or prints; and nothing counts in floats, so
//! that a picture is the same to the byte wherever it is drawn.
//!
//! ```
//! use sluicegate_plot::{Figure, Plot, Role, Row, Series, Shape, svg};
//!
//! let counts = vec![3, 1, 0, 2];
//! let series = Series { name: "admitted", role: Role::Admitted, shape: Shape::Stack, values: counts };
//! let plot = Plot { label: "requests".to_owned(), series: vec![series], ..Plot::default() };
//! let row = Row { title: "gcra:30/1m".to_owned(), note: String::new(), plots: vec![plot] };
//! let figure = Figure { title: "A rule".to_owned(), width: 1_000_000, rows: vec![row], ..Figure::default() };
//! assert!(svg(&figure).starts_with("<svg "));
//! ```

mod canvas;
mod figure;
mod html;
mod scale;
mod svg;
mod terminal;
mod text;

pub use figure::{Change, Figure, Mark, Plot, Role, Row, Series, Shape};
pub use html::{Page, Table};
pub use scale::{Ticks, count_ticks, span, time_ticks};
pub use svg::svg;
pub use terminal::Terminal;
