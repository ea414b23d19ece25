//! The files of the page, in the binary.

use std::{io::Write as _, sync::OnceLock};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http_body_util::Full;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{
        ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
        ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

/// A file of the page.
pub(crate) struct Asset {
    pub(super) path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    compressed: OnceLock<CompressedFile>,
}

/// The compressed form of a file, made at its first request.
struct CompressedFile {
    zipped: Bytes,
    /// Entity tags of both forms.
    tags: [String; 2],
}

const fn asset(path: &'static str, kind: &'static str, bytes: &'static [u8]) -> Asset {
    Asset { path, kind, bytes, compressed: OnceLock::new() }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../../assets/", $name))
    };
}

/// All files.
pub(super) static ASSETS: [Asset; 14] = [
    asset("/", HTML, file!("index.html")),
    asset("/dashboard/page.css", CSS, file!("page.css")),
    asset("/dashboard/main.js", SCRIPT, file!("main.js")),
    asset("/dashboard/request.js", SCRIPT, file!("request.js")),
    asset("/dashboard/words.js", SCRIPT, file!("words.js")),
    asset("/dashboard/charts.js", SCRIPT, file!("charts.js")),
    asset("/dashboard/keys.js", SCRIPT, file!("keys.js")),
    asset("/dashboard/list.js", SCRIPT, file!("list.js")),
    asset("/dashboard/live.js", SCRIPT, file!("live.js")),
    asset("/dashboard/rules.js", SCRIPT, file!("rules.js")),
    asset("/dashboard/play.js", SCRIPT, file!("play.js")),
    asset("/dashboard/icon.svg", "image/svg+xml", file!("icon.svg")),
    asset("/dashboard/uplot.js", SCRIPT, file!("uplot/uPlot.iife.min.js")),
    asset("/dashboard/uplot.css", CSS, file!("uplot/uPlot.min.css")),
];

/// The browser loads nothing from other origins, runs no inline scripts and shows the page in no frame.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     object-src 'none'",
);

/// Sets the security headers of all responses of the dashboard.
pub(super) fn harden(fields: &mut HeaderMap) {
    fields.insert(CONTENT_SECURITY_POLICY, POLICY);
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    fields.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    fields.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
}

impl Asset {
    /// The file, compressed if the client accepts that, or 304 if the client has it.
    pub(super) async fn reply(&'static self, request_headers: &HeaderMap) -> Response<Full<Bytes>> {
        let compressed = match self.compressed.get() {
            Some(compressed) => compressed,
            // Compression takes milliseconds, too long for the thread of a worker.
            None => {
                match spawn_blocking(|| self.compressed.get_or_init(|| self.compress())).await {
                    Ok(compressed) => compressed,
                    Err(_) => self.compressed.get_or_init(|| self.compress()),
                }
            }
        };
        let zipped = accepts_gzip(request_headers);
        let tag = &compressed.tags[usize::from(zipped)];
        let mut reply = Response::default();
        let fields = reply.headers_mut();
        harden(fields);
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        fields.insert(VARY, HeaderValue::from_static("accept-encoding"));
        fields.insert(ETAG, HeaderValue::try_from(tag).expect("a tag is ASCII"));
        if has(request_headers, tag) {
            *reply.status_mut() = StatusCode::NOT_MODIFIED;
            return reply;
        }
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if zipped {
            fields.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let body = if zipped { compressed.zipped.clone() } else { Bytes::from_static(self.bytes) };
        *reply.body_mut() = body.into();
        reply
    }

    fn compress(&self) -> CompressedFile {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(self.bytes).and_then(|()| encoder.finish());
        let digest = Sha256::digest(self.bytes);
        let tag: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        CompressedFile {
            zipped: written.expect("memory takes all that is written").into(),
            tags: [format!("\"{tag}\""), format!("\"{tag}-gzip\"")],
        }
    }
}

/// Whether the client accepts gzip; `gzip;q=0` declines it.
fn accepts_gzip(request_headers: &HeaderMap) -> bool {
    let values =
        request_headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let none = quality.trim().strip_prefix("q=").and_then(|it| it.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && none.is_none_or(|quality| quality > 0.0)
    })
}

/// Whether the client has the version with this tag.
fn has(request_headers: &HeaderMap, tag: &str) -> bool {
    let values =
        request_headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|it| it == "*" || it.strip_prefix("W/").unwrap_or(it) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_first_view_is_under_100_kb() {
        let sizes: Vec<_> =
            ASSETS.iter().map(|asset| (asset.path, asset.compress().zipped.len())).collect();
        let sum: usize = sizes.iter().map(|it| it.1).sum();
        println!("figure: the first view is {sum} bytes on the wire: {sizes:?}");
        assert!(sum < 100_000);
    }

    #[test]
    fn accept_encoding_decides_about_gzip() {
        for (text, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("identity", false),
            ("", false),
        ] {
            let mut fields = HeaderMap::new();
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static(text));
            assert_eq!(accepts_gzip(&fields), expected, "{text}");
        }
    }
}
