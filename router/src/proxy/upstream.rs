//! Connections to workers: pooled, kept alive, HTTP/1.1 or HTTP/2 without TLS.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::config::Proxy as ProxySettings;
use crate::discovery::Worker;
use crate::error::Failure;

const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 << 20;

#[derive(Clone, Debug)]
pub struct Upstreams {
    http1: Client<HttpConnector, Full<Bytes>>,
    http2: Client<HttpConnector, Full<Bytes>>,
}

impl Upstreams {
    pub fn new(settings: &ProxySettings) -> Self {
        let mut connector = HttpConnector::new();
        // Small writes must not wait for each other's acknowledgements.
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_millis(settings.connect_timeout_ms)));
        connector.set_keepalive(Some(Duration::from_secs(30)));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(settings.max_idle_per_worker)
            .pool_idle_timeout(Duration::from_millis(settings.idle_connection_ms));
        let http1 = builder.build(connector.clone());
        // All streams share a connection: one that nobody reads must not use up what the others need.
        let http2 = builder
            .http2_only(true)
            .http2_initial_stream_window_size(Some(STREAM_WINDOW))
            .http2_initial_connection_window_size(Some(CONNECTION_WINDOW))
            .http2_keep_alive_interval(Some(Duration::from_secs(10)))
            .http2_keep_alive_timeout(Duration::from_secs(5))
            .build(connector);
        Self { http1, http2 }
    }

    /// Sends a request and waits for the answer's headers.
    pub async fn send(
        &self,
        worker: &Worker,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let uri = worker.uri(path).ok_or(Failure::Connect)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers.clone();
        let client = if worker.spec.http2 {
            *request.version_mut() = Version::HTTP_2;
            &self.http2
        } else {
            &self.http1
        };
        client.request(request).await.map_err(|error| {
            tracing::debug!(worker = worker.name, error = %chain(&error), "request failed");
            if error.is_connect() { Failure::Connect } else { Failure::Closed }
        })
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
