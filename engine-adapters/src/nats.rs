//! NATS: the connection, who is announced there, and the index fed from it.

mod announcements;
mod listener;
mod subscriber;
mod view;

use std::fmt;

use async_nats::{Client, ConnectOptions, Event};
use tokio::sync::watch;

pub use self::announcements::{Announcement, Announcements};
pub use self::listener::{Ask, Gathered, Listener, Parts, Snapshot};
pub use self::subscriber::{NatsFeed, NatsFeedConfig};
pub use self::view::{NatsReport, NatsView};

#[derive(Debug, thiserror::Error)]
#[error("NATS: {what}: {error}")]
pub struct NatsError {
    what: &'static str,
    error: String,
}

impl NatsError {
    pub(crate) fn new(what: &'static str, error: &dyn fmt::Display) -> Self {
        Self { what, error: error.to_string() }
    }
}

/// Connects, waits for the server if it is not there yet, and comes back whenever it was away. The number counts
/// connections: when it grows, messages may have been lost.
pub async fn connect(url: &str, name: &str) -> Result<(Client, watch::Receiver<u64>), NatsError> {
    let (count, connected) = watch::channel(0_u64);
    let noted = move |event: Event| {
        match &event {
            Event::Connected => count.send_modify(|count| *count += 1),
            Event::Disconnected => tracing::warn!("NATS is gone, trying again"),
            other => tracing::debug!(%other, "NATS"),
        }
        std::future::ready(())
    };
    let options = ConnectOptions::new()
        .name(name)
        .retry_on_initial_connect()
        .reconnect_delay_callback(|attempt| std::time::Duration::from_millis((50 * attempt as u64).min(2000)))
        .event_callback(noted);
    let client = options.connect(url).await.map_err(|error| NatsError::new("cannot connect", &error))?;
    Ok((client, connected))
}
