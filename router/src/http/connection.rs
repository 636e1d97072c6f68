//! One client's connection, from its first byte to its last answer.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::last_call::{LAST_CALL, Quiet};
use super::paced::{Greeting, Pace, Paced};
use super::tls::ServerTls;
use crate::proxy::{Body, Cut};

/// How connections of a listener are served, each by a copy of its own.
#[derive(Clone)]
pub(super) struct Servers<S> {
    pub(super) http1: http1::Builder,
    /// For those who speak HTTP/2, or may.
    pub(super) both: auto::Builder<TokioExecutor>,
    pub(super) service: S,
    /// How long a request's head may take, and how long a connection may be idle.
    pub(super) head: Duration,
    pub(super) idle: Duration,
    pub(super) tls: Option<Arc<ServerTls>>,
}

/// How HTTP/2 begins.
const HTTP2: &[u8] = b"PRI ";

impl<S> Servers<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    /// Until it is over. `watcher` is kept for as long, for those who wait for that; `leaving` is made when no more
    /// is to come.
    pub(super) async fn serve(self, stream: TcpStream, watcher: Watcher, leaving: Cut) -> Result<(), String> {
        match self.tls.clone() {
            None => self.plain(stream, watcher, &leaving).await,
            // In a box of its own, or every plain connection would have room for it.
            Some(tls) => Box::pin(self.secured(tls, stream, watcher, &leaving)).await,
        }
    }

    async fn plain(self, stream: TcpStream, watcher: Watcher, leaving: &Cut) -> Result<(), String> {
        // A connection nobody says anything on is closed, and one that has only just come is heard.
        let last_call = async {
            leaving.token().cancelled().await;
            tokio::time::sleep(LAST_CALL).await;
        };
        let spoken = tokio::select! {
            biased;
            spoken = tokio::time::timeout(self.idle, stream.readable()) => matches!(spoken, Ok(Ok(()))),
            () = last_call => false,
        };
        if !spoken {
            return Ok(());
        }
        // What speaks HTTP/1 from its first word needs nobody in between who could speak both.
        let mut first = [0; HTTP2.len()];
        let seen = stream.peek(&mut first).await.unwrap_or(0);
        if HTTP2.starts_with(&first[..seen]) {
            return self.http2(stream, watcher, leaving).await;
        }
        self.http1(stream, watcher, leaving).await
    }

    async fn secured(
        self,
        tls: Arc<ServerTls>,
        stream: TcpStream,
        watcher: Watcher,
        leaving: &Cut,
    ) -> Result<(), String> {
        let accepted = leaving.token().run_until_cancelled(tls.accept(stream)).await;
        let Some(Some((stream, http2))) = accepted else { return Ok(()) };
        if http2 {
            let only = Self { both: self.both.http2_only(), ..self };
            return only.http2(stream, watcher, leaving).await;
        }
        self.http1(stream, watcher, leaving).await
    }

    /// For those who speak HTTP/2, or may. Requests that were heard are answered, and then it is over: when the router
    /// leaves, or when nothing has been asked for long.
    async fn http2<I>(self, stream: I, watcher: Watcher, leaving: &Cut) -> Result<(), String>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let quiet = Quiet::new();
        let stream = TokioIo::new(Greeting::new(stream, self.head));
        let mut connection = pin!(self.both.serve_connection(stream, quiet.counting(self.service)));
        let over = async {
            tokio::select! {
                () = leaving.token().cancelled() => {}
                () = quiet.wait(self.idle) => {}
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = over => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        drop(watcher);
        ended.map_err(|error| error.to_string())
    }

    async fn http1<I>(self, stream: I, watcher: Watcher, leaving: &Cut) -> Result<(), String>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (pace, quiet) = (Pace::default(), Quiet::new());
        let stream = TokioIo::new(Paced::new(stream, pace.clone(), self.head));
        let counted = quiet.counting(self.service);
        let service = service_fn(move |request| {
            pace.serving();
            let (answered, pace) = (counted.call(request), pace.clone());
            async move {
                let answered = answered.await;
                pace.quiet();
                answered
            }
        });
        let ended = quiet.watch(self.http1.serve_connection(stream, service), leaving).await;
        // Whoever waits for connections to end waits for this one.
        drop(watcher);
        ended.map_err(|error| error.to_string())
    }
}
