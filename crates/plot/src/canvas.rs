//! A canvas of braille characters: two dots wide and four high in each.

use crate::figure::Role;

/// Dots of a character from the top left, column by column, as bits of its code point.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
const BLANK: u32 = 0x2800;

/// Dots, each with its role.
#[derive(Debug)]
pub(crate) struct Canvas {
    /// In characters.
    columns: usize,
    rows: usize,
    dots: Vec<Option<Role>>,
}

impl Canvas {
    pub(crate) fn new(columns: usize, rows: usize) -> Self {
        Self { columns, rows, dots: vec![None; columns * rows * 8] }
    }

    /// Width in dots.
    pub(crate) const fn width(&self) -> usize {
        2 * self.columns
    }

    /// Height in dots.
    pub(crate) const fn height(&self) -> usize {
        4 * self.rows
    }

    /// Sets a dot, counted from the bottom left; dots outside are ignored.
    pub(crate) fn set(&mut self, x: usize, y: usize, role: Role) {
        if x < self.width() && y < self.height() {
            let index = (self.height() - 1 - y) * self.width() + x;
            self.dots[index] = Some(role);
        }
    }

    /// The characters of a row, counted from the top, each with the role that has most of its dots.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = (char, Option<Role>)> {
        (0..self.columns).map(move |column| {
            let (mut bits, mut counts) = (0, [0_u8; Role::ALL.len()]);
            for (dx, side) in DOTS.iter().enumerate() {
                for (dy, bit) in side.iter().enumerate() {
                    let index = (4 * row + dy) * self.width() + 2 * column + dx;
                    if let Some(role) = self.dots[index] {
                        bits |= bit;
                        if let Some(at) = Role::ALL.iter().position(|it| *it == role) {
                            counts[at] += 1;
                        }
                    }
                }
            }
            let most = (0..counts.len()).rev().max_by_key(|at| counts[*at]);
            let role = most.filter(|at| counts[*at] > 0).map(|at| Role::ALL[at]);
            (if bits == 0 { ' ' } else { char::from_u32(BLANK + bits).unwrap_or(' ') }, role)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn set_dot_is_in_its_character() {
        let mut canvas = Canvas::new(2, 1);
        canvas.set(0, 0, Role::Denied);
        canvas.set(3, 3, Role::Left);
        canvas.set(4, 0, Role::Left);
        canvas.set(0, 4, Role::Left);
        let row: Vec<_> = canvas.row(0).collect();
        assert_eq!(row, [('⡀', Some(Role::Denied)), ('⠈', Some(Role::Left))]);
    }

    proptest! {
        #[test]
        fn row_each_dot_is_one_bit(
            dots in proptest::collection::btree_set((0..20_usize, 0..12_usize), 0..100),
        ) {
            let mut canvas = Canvas::new(10, 3);
            dots.iter().for_each(|(x, y)| canvas.set(*x, *y, Role::Admitted));
            let characters = (0..3).flat_map(|row| canvas.row(row).collect::<Vec<_>>());
            let bits = characters.map(|(character, _)| match character {
                ' ' => 0,
                _ => (u32::from(character) - BLANK).count_ones(),
            });
            prop_assert_eq!(usize::try_from(bits.sum::<u32>()).unwrap(), dots.len());
        }
    }
}
