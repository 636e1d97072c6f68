//! NATS: the connection, who is announced there, and the index fed from it.

mod access;
mod announcements;
mod listener;
mod parts;
mod subscriber;
mod view;

use std::fmt;

use async_nats::Client;
use tokio::sync::watch;

pub use self::access::{NatsAccess, NatsConnection, NatsIdentity, Trouble, is_seed};
pub use self::announcements::{Announcement, Announcements};
pub use self::listener::{Ask, Listener, Snapshot};
pub use self::parts::{Gathered, Parts};
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

/// Connects without more ado; see [`NatsAccess::connect`].
pub async fn connect(url: &str, name: &str) -> Result<(Client, watch::Receiver<u64>), NatsError> {
    let connection = NatsAccess::default().connect(url, name).await?;
    Ok((connection.client, connection.connected))
}
