//! Texts inside a plot, none on top of another.

use std::ops::RangeInclusive;

/// The space that texts take, in tenths of a pixel.
#[derive(Debug)]
pub(crate) struct Labels {
    /// Vertical lines that no text should cross.
    walls: Vec<u64>,
    taken: Vec<Extent>,
}

/// The rectangle around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) left: u64,
    pub(crate) right: u64,
    /// The baseline of the text.
    pub(crate) baseline: u64,
}

/// On which side of a point a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// The width of a character and the height of a line, in the larger of the two sizes that a drawing
/// is shown in.
pub(crate) const CHARACTER: u64 = 98;
const LINE: u64 = 190;
/// Space between two texts.
const GAP: u64 = 60;

impl Anchor {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }

    /// Where `text` at `x` begins and ends; `None` if it begins before the drawing.
    pub(crate) fn extent(self, text: &str, x: u64) -> Option<(u64, u64)> {
        let width = width(text);
        let left = match self {
            Self::Start => x,
            Self::Middle => x.checked_sub(width / 2)?,
            Self::End => x.checked_sub(width)?,
        };
        Some((left, left + width))
    }
}

impl Labels {
    /// No text yet, and vertical lines that none should cross.
    pub(crate) const fn between(walls: Vec<u64>) -> Self {
        Self { walls, taken: Vec::new() }
    }

    /// Takes the space of `text`, if that is free and lies `within`.
    pub(crate) fn place(
        &mut self,
        text: &str,
        anchor: Anchor,
        x: u64,
        baseline: u64,
        within: &RangeInclusive<u64>,
    ) -> bool {
        let Some((from, to)) = anchor.extent(text, x) else { return false };
        let extent = Extent { left: from, right: to, baseline };
        let crosses = self.walls.iter().any(|wall| (from..to).contains(wall));
        let fits = from >= *within.start() && to <= *within.end() && !crosses;
        let free = self.taken.iter().all(|other| !other.meets(&extent));
        if fits && free {
            self.taken.push(extent);
        }
        fits && free
    }
}

impl Extent {
    fn meets(&self, other: &Self) -> bool {
        self.left < other.right + GAP
            && other.left < self.right + GAP
            && self.baseline.abs_diff(other.baseline) < LINE
    }
}

/// The width of a text, about.
pub(crate) fn width(text: &str) -> u64 {
    CHARACTER * u64::try_from(text.chars().count()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_never_overlap_and_stay_inside() {
        let mut labels = Labels::between(Vec::new());
        let mut place = |anchor, x, y| labels.place("word", anchor, x, y, &(0..=2000));
        assert!(place(Anchor::Start, 0, 500));
        assert!(!place(Anchor::Start, 300, 500), "on top of the first");
        assert!(!place(Anchor::Middle, 500, 600), "less than a line below");
        assert!(!place(Anchor::Start, 420, 500), "too close to the first");
        assert!(place(Anchor::Start, 300, 700));
        assert!(place(Anchor::End, 2000, 500));
        assert!(!place(Anchor::Start, 1700, 900), "beyond the right end");
        assert!(!place(Anchor::End, 300, 900), "before the left end");
        let mut labels = Labels::between(vec![1000]);
        assert!(!labels.place("word", Anchor::Middle, 900, 900, &(0..=2000)), "across a line");
    }
}
