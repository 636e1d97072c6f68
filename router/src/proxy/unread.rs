//! An answer that its client does not read.
//!
//! Over HTTP/1 the system notices: what was sent is not taken. A client of HTTP/2 can take everything that is sent and
//! still leave no window for an answer; then nobody asks the answer for more, and nothing in it can notice that time goes
//! by. So somebody else looks at the clock, and lets go of the worker when it has been too long.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::cut::Cut;
use super::relay::{BrokenOff, Relay};
use crate::error::Failure;

/// How long an answer may still be waited for when the router leaves.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Debug)]
pub struct Unread(Arc<Mutex<Answer>>);

#[derive(Debug)]
struct Answer {
    /// None once it was given up.
    relay: Option<Box<Relay>>,
    /// Since when the client has had something that it could have read; none while the worker is waited for.
    unread: Option<Instant>,
}

impl Unread {
    pub(super) fn new(relay: Box<Relay>, patience: Duration) -> Self {
        let cut = relay.cut().clone();
        let answer = Answer { relay: Some(relay), unread: Some(Instant::now()) };
        let answer = Arc::new(Mutex::new(answer));
        tokio::spawn(watch(Arc::downgrade(&answer), patience, cut));
        Self(answer)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        let mut answer = self.0.lock();
        let Some(relay) = &mut answer.relay else {
            return Poll::Ready(Some(Err(BrokenOff::new(Failure::Timeout))));
        };
        let polled = Pin::new(relay).poll(cx);
        answer.unread = polled.is_ready().then(Instant::now);
        polled
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().relay.as_ref().is_some_and(|relay| relay.is_over())
    }
}

async fn watch(answer: Weak<Mutex<Answer>>, patience: Duration, cut: Cut) {
    loop {
        let Some(unread) = answer.upgrade().map(|answer| answer.lock().unread) else { return };
        let look = unread.unwrap_or_else(Instant::now) + patience;
        tokio::select! {
            () = tokio::time::sleep_until(look) => {}
            () = cut.token().cancelled() => tokio::time::sleep(LAST_LOOK).await,
        }
        let Some(answer) = answer.upgrade() else { return };
        let mut answer = answer.lock();
        let patience = if cut.is_made() { LAST_LOOK } else { patience };
        if answer.unread.is_some_and(|since| since.elapsed() >= patience) {
            // Its load, its worker's connection and its key's place go with it.
            let given_up = answer.relay.take();
            drop(answer);
            tracing::debug!("an answer was not read, and its worker need not go on");
            drop(given_up);
            return;
        }
        if cut.is_made() {
            return;
        }
    }
}
