//! Something made from files, and made anew when they change.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::Xxh3;

use super::{TlsError, read};

type Make<T> = dyn Fn() -> Result<T, TlsError> + Send + Sync;

/// See the [module](self). Files that something cannot be made of change nothing.
pub struct Watched<T> {
    current: ArcSwap<T>,
    files: Vec<PathBuf>,
    /// What was in them when they were last looked at.
    seen: Mutex<u64>,
    make: Box<Make<T>>,
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("files", &self.files).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// `make` reads these files.
    pub fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        // Looked at before they are read: what changes in between is found by the next look.
        let seen = Mutex::new(digest(&files));
        Ok(Self { current: ArcSwap::from_pointee(make()?), files, seen, make: Box::new(make) })
    }

    pub fn get(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Looks at the files once; nothing when they are as they were.
    pub fn look(&self) -> Option<Result<Arc<T>, TlsError>> {
        let mut seen = self.seen.lock();
        let now = digest(&self.files);
        if std::mem::replace(&mut *seen, now) == now {
            return None;
        }
        Some((self.make)().map(|made| {
            let made = Arc::new(made);
            self.current.store(made.clone());
            made
        }))
    }

    /// Follows the files until stopped; `changed` is told of everything new.
    pub async fn follow(
        self: Arc<Self>,
        what: &'static str,
        every: Duration,
        stop: CancellationToken,
        changed: impl Fn(&T),
    ) {
        while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            let watched = self.clone();
            match tokio::task::spawn_blocking(move || watched.look()).await.ok().flatten() {
                None => {}
                Some(Ok(made)) => {
                    tracing::info!(what, "TLS files have changed and are in use");
                    changed(&made);
                }
                Some(Err(error)) => {
                    tracing::error!(what, %error, "TLS files have changed and cannot be used; the old ones stay in use");
                }
            }
        }
    }
}

/// Tells contents apart, those that cannot be read from others too.
fn digest(files: &[PathBuf]) -> u64 {
    let mut hash = Xxh3::new();
    for file in files {
        let content = read(file);
        hash.update(&content.as_ref().map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hash.update(content.as_deref().unwrap_or_default());
    }
    hash.digest()
}
