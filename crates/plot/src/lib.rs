//! Charts of the effect of a policy on traffic.
//!
//! A [`Figure`] has the content: an axis, mostly of time, and for each policy counts in spans of equal
//! length, lines, bounds and texts. [`svg`] draws it as a file in the light or dark colours of the reader's system,
//! [`Terminal`] in characters of braille, and [`Page`] puts it on a page of HTML that needs nothing
//! else. Nothing here knows a policy, reads a clock, prints, or uses floats: a
//! chart has the same bytes on every machine.
//!
//! ```
//! use sluicegate_plot::{Figure, Plot, Role, Row, Series, Shape, svg};
//!
//! let counts = vec![3, 1, 0, 2];
//! let series = Series { name: "allowed", role: Role::Admitted, shape: Shape::Bars, values: counts };
//! let plot = Plot { label: "requests".to_owned(), series: vec![series], ..Plot::default() };
//! let row = Row { title: "gcra:30/1m".to_owned(), notes: vec![], plots: vec![plot] };
//! let figure = Figure { title: "A rule".to_owned(), width: 1_000_000, rows: vec![row], ..Figure::default() };
//! assert!(svg(&figure).starts_with("<svg "));
//! ```

mod figure;
mod html;
mod labels;
mod scale;
mod svg;
mod terminal;
mod text;

pub use figure::{Bound, Caption, Edge, Figure, Peak, Plot, Role, Row, Series, Shape, Size, Tick};
pub use html::{Page, Table};
pub use scale::span;
pub use svg::svg;
pub use terminal::Terminal;
