//! The one secret that opens the admin listener.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::HeaderMap;
use tokio_util::sync::CancellationToken;

use super::secret::{Digest, digest_in, shown_secret};
use crate::error::RouterError;

/// Read from a file, and again when that changes. Without a file nothing is asked for.
#[derive(Debug)]
pub struct AdminToken(Option<(PathBuf, ArcSwap<Digest>)>);

impl AdminToken {
    /// A file that cannot be used stops the start.
    pub fn open(file: Option<PathBuf>) -> Result<Self, String> {
        let Some(path) = file else { return Ok(Self(None)) };
        let known = ArcSwap::from_pointee(digest_in(&path)?);
        Ok(Self(Some((path, known))))
    }

    pub fn on(&self) -> bool {
        self.0.is_some()
    }

    pub fn check(&self, headers: &HeaderMap) -> Result<(), RouterError> {
        let Some((_, known)) = &self.0 else { return Ok(()) };
        let message = match shown_secret(headers) {
            Some(secret) if Digest::of(secret) == **known.load() => return Ok(()),
            Some(_) => "the admin token is another one",
            None => "there is no admin token, expected it as `Authorization: Bearer TOKEN`",
        };
        Err(RouterError::Unauthorized { message })
    }

    /// Follows the file. One that cannot be used changes nothing.
    pub async fn follow(self: Arc<Self>, every: Duration, stop: CancellationToken) {
        let Some((path, known)) = &self.0 else { return };
        let mut last_error = None;
        while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            let path = path.clone();
            match tokio::task::spawn_blocking(move || digest_in(&path)).await {
                Ok(Ok(digest)) => {
                    last_error = None;
                    if digest != **known.load() {
                        known.store(Arc::new(digest));
                        tracing::info!("admin token read");
                    }
                }
                Ok(Err(error)) if last_error.as_ref() != Some(&error) => {
                    tracing::error!(error, "the admin token's file cannot be used; nothing is changed");
                    last_error = Some(error);
                }
                _ => {}
            }
        }
    }
}
