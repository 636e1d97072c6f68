//! An end that is made once: no more connections, or the end of all patience, when every answer still running ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Asked with every chunk of every answer, so asking must cost nothing: the token alone would take a lock that all of
/// them share.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    made: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Cut {
    pub fn make(&self) {
        self.made.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub fn is_made(&self) -> bool {
        self.made.load(Ordering::Acquire)
    }

    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    pub(super) fn made(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }
}
