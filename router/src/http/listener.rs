//! A listening socket and its connections.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::last_call::{LAST_CALL, Quiet};
use super::{Door, answer};
use crate::app::Router;

/// What every connection of a listener has in common.
#[derive(Clone, Debug)]
pub struct Edge {
    pub door: Door,
    pub max_connections: usize,
    /// How long a connection may be idle, or a request's headers may take.
    pub idle: Duration,
    /// How long a client may leave what it was sent unread.
    pub stalled: Duration,
    pub cors_origins: Vec<String>,
}

#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    edge: Edge,
}

impl Listener {
    pub async fn bind(address: SocketAddr, edge: Edge) -> std::io::Result<Self> {
        Ok(Self { socket: TcpListener::bind(address).await?, edge })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until stopped, then lets connections finish what they are at.
    pub async fn serve(self, router: Arc<Router>, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.edge.max_connections.min(Semaphore::MAX_PERMITS)));
        let (door, cors) = (self.edge.door, cors(&self.edge.cors_origins));
        let service =
            tower::service_fn(move |request: Request<Incoming>| answer(router.clone(), door, request));
        let service = ServiceBuilder::new().option_layer(cors).service(service);
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(self.edge.idle)
            // Chunks are small: copying them together costs less than handing them over one by one.
            .writev(false)
            // What a client has not read yet piles up to this, and no further.
            .max_buf_size(CLIENT_BUFFER)
            // Whoever closes its side is gone: its engine should not go on.
            .half_close(false);
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(self.edge.idle).half_close(false);
        server.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(30)));
        let graceful = GracefulShutdown::new();
        // Whom the system has let in already is let in, or would be reset.
        let mut left = pin!(async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_ACCEPTS).await;
        });
        loop {
            let accepted = async {
                // A connection too many waits in the system's queue.
                let place = places.clone().acquire_owned().await;
                (place, self.socket.accept().await)
            };
            let next = tokio::select! {
                biased;
                () = &mut left => None,
                accepted = accepted => Some(accepted),
            };
            let Some((place, accepted)) = next else { break };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of files, most likely: it passes when connections are closed.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            // A client that reads nothing must not keep an engine's slot for ever.
            let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(self.edge.stalled));
            let idle = self.edge.idle;
            let quiet = Quiet::new();
            let service = quiet.counting(TowerToHyperService::new(service.clone()));
            let (server, http1) = (server.clone(), http1.clone());
            let (watcher, closing) = (graceful.watcher(), stop.clone());
            tokio::spawn(async move {
                // A connection nobody says anything on is closed, and one that has only just come is heard.
                let leaves = async {
                    closing.cancelled().await;
                    tokio::time::sleep(LAST_CALL).await;
                };
                let spoken = tokio::select! {
                    biased;
                    spoken = tokio::time::timeout(idle, stream.readable()) => matches!(spoken, Ok(Ok(()))),
                    () = leaves => false,
                };
                if !spoken {
                    return;
                }
                // What speaks HTTP/1 from its first word needs nobody in between who could speak both.
                let mut first = [0; HTTP2.len()];
                let seen = stream.peek(&mut first).await.unwrap_or(0);
                let ended = if HTTP2.starts_with(&first[..seen]) {
                    let connection = server.serve_connection(TokioIo::new(stream), service);
                    watcher.watch(connection.into_owned()).await.map_err(|error| error.to_string())
                } else {
                    let connection = http1.serve_connection(TokioIo::new(stream), service);
                    let ended = quiet.watch(connection, &closing).await;
                    // Whoever waits for connections to end waits for this one.
                    drop(watcher);
                    ended.map_err(|error| error.to_string())
                };
                if let Err(error) = ended {
                    tracing::debug!(error, "connection ended");
                }
                drop(place);
            });
        }
        drop(self.socket);
        graceful.shutdown().await;
    }
}

/// How HTTP/2 begins.
const HTTP2: &[u8] = b"PRI ";
const CLIENT_BUFFER: usize = 64 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const LAST_ACCEPTS: Duration = Duration::from_millis(10);

fn cors(origins: &[String]) -> Option<CorsLayer> {
    let layer = CorsLayer::new()
        .allow_methods(Any)
        // `*` would not cover authorization.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any);
    match origins {
        [] => None,
        origins if origins.iter().any(|origin| origin == "*") => Some(layer.allow_origin(Any)),
        origins => {
            let origins: Vec<_> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
            Some(layer.allow_origin(AllowOrigin::list(origins)))
        }
    }
}
