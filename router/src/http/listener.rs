//! A listening socket and its connections.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::connection::Servers;
use super::crowd::Crowd;
use super::tls::ServerTls;
use super::{Door, answer};
use crate::app::Router;
use crate::proxy::Cut;

/// What every connection of a listener has in common.
#[derive(Clone, Debug)]
pub struct Edge {
    pub door: Door,
    pub max_connections: usize,
    /// Those of one address; 0 for as many as it likes.
    pub per_address: usize,
    /// Bytes of a request's first line and headers.
    pub max_head: usize,
    /// How long they may take from the first byte on.
    pub head: Duration,
    /// How long a connection may be idle.
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

    fn http1(&self) -> http1::Builder {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(self.edge.idle)
            // Chunks are small: copying them together costs less than handing them over one by one.
            .writev(false)
            .max_header_size(self.edge.max_head)
            // What a client has not read yet piles up to this, and no further.
            .max_buf_size(CLIENT_BUFFER.max(self.edge.max_head))
            // Whoever closes its side is gone: its engine should not go on.
            .half_close(false);
        http1
    }

    /// For those who speak HTTP/2, or may.
    fn both(&self) -> auto::Builder<TokioExecutor> {
        let mut server = auto::Builder::new(TokioExecutor::new());
        // Comes to speak HTTP/1 only with those whose first word came in pieces.
        server
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.edge.head)
            .max_buf_size(CLIENT_BUFFER.max(self.edge.max_head))
            .half_close(false);
        server
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(self.edge.max_head).unwrap_or(u32::MAX))
            .max_concurrent_streams(MOST_STREAMS)
            // Whoever opens streams only to take them back is cut off.
            .max_pending_accept_reset_streams(MOST_RESETS)
            .max_local_error_reset_streams(MOST_ERRORS)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_PATIENCE);
        server
    }

    /// Serves until stopped, then lets connections finish what they are at.
    pub async fn serve(self, router: Arc<Router>, stop: Cut) {
        let places = Arc::new(Semaphore::new(self.edge.max_connections.min(Semaphore::MAX_PERMITS)));
        let (crowd, metrics) = (Crowd::new(self.edge.per_address), router.metrics.clone());
        let (door, cors) = (self.edge.door, cors(&self.edge.cors_origins));
        let service =
            tower::service_fn(move |request: Request<Incoming>| answer(router.clone(), door, request));
        let service = ServiceBuilder::new().option_layer(cors).service(service);
        let servers = Servers {
            http1: self.http1(),
            both: self.both(),
            service: TowerToHyperService::new(service),
            head: self.edge.head,
            idle: self.edge.idle,
            tls: self.edge.tls.clone(),
        };
        let graceful = GracefulShutdown::new();
        // Whom the system has let in already is let in, or would be reset.
        let mut left = pin!(async {
            stop.token().cancelled().await;
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
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of files, most likely: it passes when connections are closed.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(guest) = crowd.enter(peer.ip()) else {
                metrics.connection_refused();
                continue;
            };
            let _ = stream.set_nodelay(true);
            // A client that reads nothing must not keep an engine's slot for ever.
            let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(self.edge.stalled));
            let serving = servers.clone().serve(stream, graceful.watcher(), stop.clone());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    tracing::debug!(error, "connection ended");
                }
                drop((place, guest));
            });
        }
        drop(self.socket);
        graceful.shutdown().await;
    }
}

const CLIENT_BUFFER: usize = 64 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const LAST_ACCEPTS: Duration = Duration::from_millis(10);
/// Requests at a time on one connection of HTTP/2, and streams that may be taken back or go wrong on it.
const MOST_STREAMS: u32 = 256;
const MOST_RESETS: usize = 32;
const MOST_ERRORS: usize = 256;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(20);

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
