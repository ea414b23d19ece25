//! How much clients of HTTP may send at a time, and the memory that is reserved for it.

/// Longest head of a request, in bytes.
pub(crate) const MAX_HEAD: u32 = 32 * 1024;
/// Longest head of a request and longest pending output on HTTP/1.1, in bytes.
pub(super) const MAX_BUFFER: usize = 64 * 1024;
/// Maximum number of headers of a request, on HTTP/1.1.
pub(super) const MAX_FIELDS: usize = 100;
/// Concurrent requests of one client, on HTTP/2.
pub(super) const MAX_STREAMS: u32 = 256;
/// Requests that a client may reset before they are processed.
pub(super) const MAX_RESETS: usize = 32;
/// Malformed requests that are rejected before the connection is closed.
pub(super) const MAX_REJECTIONS: usize = 128;
/// Unread bytes of one body, and of all bodies, that a client may send, on HTTP/2.
pub(super) const WINDOW: u32 = 64 * 1024;
pub(super) const WINDOW_OF_ALL: u32 = 256 * 1024;
/// Longest pending output of one request on HTTP/2, in bytes.
pub(crate) const MAX_PENDING: usize = 16 * 1024;

/// Memory of a connection in bytes, while HTTP/1.1 or HTTP/2 is spoken on it.
pub(super) const HTTP1: usize = 16 * 1024;
pub(super) const HTTP2: usize = 20 * 1024;
/// Memory of TLS, from the handshake on, idle connections included.
pub(super) const TLS: usize = 12 * 1024;
/// Memory of each request in flight beyond the first on HTTP/2, besides its head.
pub(super) const STREAM: usize = 4 * 1024;
/// Memory of the slot of a request on HTTP/2, which a connection keeps for later ones: entries in h2's tables of
/// requests and of frames to send, about 350 bytes for some of them.
pub(super) const SLOT: usize = 2048;
/// Bytes that need no reservation: of the head of a lone request, and of a reply.
pub(super) const FREE_HEAD: usize = 2 * 1024;
pub(super) const FREE_REPLY: usize = 2 * 1024;

/// Overhead of each header, as HTTP/2 counts it.
pub(super) const FIELD: usize = 32;
