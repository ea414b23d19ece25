//! Progress of reading a file: a bar on standard error, if that is a terminal.

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Smaller files are read before a bar can be seen.
const WORTH_A_BAR: u64 = 32 << 20;

/// A file with a bar that moves as it is read.
#[derive(Debug)]
pub(super) struct Watched {
    file: File,
    bar: Option<ProgressBar>,
}

impl Watched {
    pub(super) fn new(file: File) -> Self {
        let length = file.metadata().map_or(0, |data| data.len());
        let shown = length >= WORTH_A_BAR && io::stderr().is_terminal();
        let bar = shown.then(|| ProgressBar::new(length));
        let style = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template(style)) {
            bar.set_style(style);
        }
        Self { file, bar }
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if let Some(bar) = &self.bar {
            bar.inc(u64::try_from(read).unwrap_or(0));
            if read == 0 {
                bar.finish_and_clear();
            }
        }
        Ok(read)
    }
}
