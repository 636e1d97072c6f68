//! How a kept HTTP/1 connection ends when the router leaves.
//!
//! A client that has its answer may send its next request at once. If the connection is closed just then, that request
//! breaks before its first byte, and the client cannot know whether it was heard. So a connection is closed only when it
//! has been quiet for a moment; what comes until then is answered, with `connection: close`. What stays possible is a
//! request that crosses with the closing of a connection nobody had used for a while: HTTP/1 has no way around that.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1::Connection;
use hyper::service::{HttpService, Service, service_fn};
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::proxy::{Body as Relayed, Cut};

/// How long a connection has to be quiet. Longer than a client far away takes to hear of its answer's end.
pub(super) const LAST_CALL: Duration = Duration::from_millis(500);

/// Whether a connection is in use, and since when it is not.
#[derive(Debug)]
pub(super) struct Quiet {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    requests: usize,
    since: Instant,
}

impl Quiet {
    pub(super) fn new() -> Arc<Self> {
        let state = State { requests: 0, since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state), freed: Notify::new() })
    }

    fn turn(self: &Arc<Self>) -> Turn {
        self.state.lock().requests += 1;
        Turn(self.clone())
    }

    /// The same service, its requests counted from their heads to the ends of their answers.
    pub(super) fn counting<S>(
        self: &Arc<Self>,
        service: S,
    ) -> impl Service<Request<Incoming>, Response = Response<Counted>, Error = Infallible, Future: Send>
    + Clone
    + use<S>
    where
        S: Service<Request<Incoming>, Response = Response<Relayed>, Error = Infallible, Future: Send> + Clone,
    {
        let quiet = self.clone();
        service_fn(move |request| {
            let (turn, answered) = (quiet.turn(), service.call(request));
            async move { answered.await.map(|answer| answer.map(|body| Counted { body, _turn: turn })) }
        })
    }

    /// Until nothing has been asked for so long.
    pub(super) async fn wait(&self, quiet: Duration) {
        loop {
            let (requests, until) = {
                let state = self.state.lock();
                (state.requests, state.since + quiet)
            };
            if requests > 0 {
                self.freed.notified().await;
            } else if Instant::now() < until {
                tokio::time::sleep_until(until).await;
            } else {
                return;
            }
        }
    }

    /// Runs a connection. Once the router leaves, until it is quiet.
    pub(super) async fn watch<I, S, B>(
        &self,
        connection: Connection<I, S>,
        leaving: &Cut,
    ) -> hyper::Result<()>
    where
        S: HttpService<Incoming, ResBody = B>,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        I: Read + Write + Unpin,
        B: Body + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut connection = pin!(connection);
        let mut over = pin!(async {
            leaving.token().cancelled().await;
            self.wait(LAST_CALL).await;
        });
        let mut asked: Option<Waker> = None;
        let ended = poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(Some(ended));
            }
            // Every chunk comes by here: it is asked again only when it could have happened.
            if asked.as_ref().is_some_and(|asked| asked.will_wake(cx.waker())) && !leaving.is_made() {
                return Poll::Pending;
            }
            asked = Some(cx.waker().clone());
            over.as_mut().poll(cx).map(|()| None)
        });
        match ended.await {
            Some(ended) => return ended,
            None => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }
}

/// A request that is being answered.
#[derive(Debug)]
struct Turn(Arc<Quiet>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.requests -= 1;
        state.since = Instant::now();
        drop(state);
        self.0.freed.notify_one();
    }
}

/// An answer whose end is noticed.
#[derive(Debug)]
pub(super) struct Counted {
    body: Relayed,
    _turn: Turn,
}

impl Body for Counted {
    type Data = <Relayed as Body>::Data;
    type Error = <Relayed as Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
