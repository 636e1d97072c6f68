//! A listening socket and its connections.

use std::net::SocketAddr;
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

use super::tls::ServerTls;
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
    /// What is spoken here; plain HTTP when none.
    pub tls: Option<Arc<ServerTls>>,
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
        loop {
            let accepted = async {
                // A connection too many waits in the system's queue.
                let place = places.clone().acquire_owned().await;
                (place, self.socket.accept().await)
            };
            let Some((place, accepted)) = stop.run_until_cancelled(accepted).await else { break };
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
            let service = TowerToHyperService::new(service.clone());
            let (server, http1) = (server.clone(), http1.clone());
            let (watcher, closing) = (graceful.watcher(), stop.clone());
            let tls = self.edge.tls.clone();
            tokio::spawn(async move {
                let ended = if let Some(tls) = tls {
                    // In a box of its own, or every plain connection would have room for it.
                    let secured = Box::pin(async move {
                        let Some(Some((stream, http2))) =
                            closing.run_until_cancelled(tls.accept(stream)).await
                        else {
                            return Ok(());
                        };
                        if http2 {
                            let server = server.http2_only();
                            let connection = server.serve_connection(TokioIo::new(stream), service);
                            watcher.watch(connection.into_owned()).await.map_err(|error| error.to_string())
                        } else {
                            let connection = http1.serve_connection(TokioIo::new(stream), service);
                            watcher.watch(connection).await.map_err(|error| error.to_string())
                        }
                    });
                    secured.await
                } else {
                    // A connection nobody says anything on is closed.
                    let spoken = tokio::time::timeout(idle, stream.readable());
                    if !matches!(closing.run_until_cancelled(spoken).await, Some(Ok(Ok(())))) {
                        return;
                    }
                    // What speaks HTTP/1 from its first word needs nobody in between who could speak both.
                    let mut first = [0; HTTP2.len()];
                    let seen = stream.peek(&mut first).await.unwrap_or(0);
                    if HTTP2.starts_with(&first[..seen]) {
                        let connection = server.serve_connection(TokioIo::new(stream), service);
                        watcher.watch(connection.into_owned()).await.map_err(|error| error.to_string())
                    } else {
                        let connection = http1.serve_connection(TokioIo::new(stream), service);
                        watcher.watch(connection).await.map_err(|error| error.to_string())
                    }
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
