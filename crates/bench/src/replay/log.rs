//! A synthetic access log of nginx, which is the same for the same sizes.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use crate::keys::Random;

/// Bytes per logged second; 100 MB are an hour. A longer log therefore covers more time.
const BYTES_PER_SECOND: u64 = 27_778;

const PATHS: [&str; 6] = [
    "/",
    "/assets/app.3f1c9a.js",
    "/api/v1/items?page=2&sort=name",
    "/login",
    "/images/hero-1600.webp",
    "/api/v1/items/81723/reviews",
];
const AGENTS: [&str; 3] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "curl/8.10.1",
];

/// Writes a log of about `bytes` bytes; returns the number of lines.
pub(super) fn write(path: &Path, bytes: u64, addresses: u64) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Random::new(7);
    let (mut written, mut line) = (0, 0);
    let mut text = Vec::new();
    while written < bytes {
        // Some addresses are much more frequent than others.
        let address = random.below(addresses).min(random.below(addresses));
        let [a, b, c, _] =
            u32::try_from(address).unwrap_or(0).wrapping_mul(2_654_435_761).to_le_bytes();
        let second = written / BYTES_PER_SECOND;
        let path = PATHS[usize::try_from(random.below(6)).unwrap_or(0)];
        let agent = AGENTS[usize::try_from(random.below(3)).unwrap_or(0)];
        text.clear();
        writeln!(
            text,
            "{}.{a}.{b}.{c} - - [14/Nov/2023:{:02}:{:02}:{:02} +0000] \"GET {path} HTTP/1.1\" 200 {} \
             \"https://example.org/\" \"{agent}\"",
            1 + address % 200,
            second / 3600,
            second / 60 % 60,
            second % 60,
            random.below(100_000),
        )?;
        out.write_all(&text)?;
        written += u64::try_from(text.len()).unwrap_or(0);
        line += 1;
    }
    out.flush()?;
    Ok(line)
}
