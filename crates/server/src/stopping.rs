//! The signal that the server is to stop.

use tokio::sync::watch;

/// Ready once the server is to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the server was dropped.
    let _ = stopping.wait_for(|&stop| stop).await;
}
