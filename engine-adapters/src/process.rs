//! What every program of ours does at its edges: log, read the wall clock, wait for a signal.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Logs to standard error what `RUST_LOG` says; see [`log`].
pub fn log_to_stderr() {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    // A filter nobody understands is as good as none.
    let _ = log(&filter, None).or_else(|_| log("info", None));
}

/// Logs to standard error: JSON lines, or text in colours for someone who looks. Unless said otherwise, that depends
/// on whether it is a terminal; `DYN_LOGGING_JSONL` says otherwise too.
pub fn log(filter: &str, json: Option<bool>) -> Result<(), ParseError> {
    let terminal = std::io::stderr().is_terminal();
    let asked =
        std::env::var("DYN_LOGGING_JSONL").ok().map(|asked| !matches!(asked.as_str(), "" | "0" | "false"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(with_defaults(filter))?)
        .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none())
        .with_writer(std::io::stderr);
    if json.or(asked).unwrap_or(!terminal) {
        logs.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else {
        logs.init();
    }
    Ok(())
}

/// What the NATS client says of its every attempt is said by us, once; who wants to hear it all names it.
fn with_defaults(filter: &str) -> String {
    if filter.contains("async_nats") { filter.to_owned() } else { format!("async_nats=off,{filter}") }
}

/// Processor time a process has taken so far, by its number or `self`; none where /proc does not tell.
pub fn cpu_seconds(pid: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have spaces; what counts comes after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = |n: usize| fields.split_whitespace().nth(n)?.parse::<f64>().ok();
    // Linux counts in hundredths of a second on every machine this runs on.
    Some((ticks(11)? + ticks(12)?) / 100.0)
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
