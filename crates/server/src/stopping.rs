//! The signal that the server is to stop.

use tokio::sync::watch;

/// Ready once the server is to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender is gone when the server was dropped instead.
    let _ = stopping.wait_for(|&stop| stop).await;
}
