//! What every program of ours does at its edges: log, read the wall clock, wait for a signal.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Logs to standard error, in colours when someone looks; `RUST_LOG` says what.
pub fn log_to_stderr() {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

/// Wall time. Everything further in gets it passed.
#[allow(clippy::disallowed_methods, reason = "the edge of the process, where wall time comes in")]
pub fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Until someone asks the process to stop.
pub async fn asked_to_stop() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
