//! One HTTP client for everything here: plain or TLS, small writes sent at once.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub(crate) type Connections = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

pub(crate) fn connections(connect: Duration) -> anyhow::Result<Connections> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect));
    connector.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_native_roots()
        .context("root certificates")?
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    // Idle ones go before any server's own limit closes them under a request.
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(4))
        .build(connector))
}

/// Somebody answered, and it was no.
#[derive(Debug)]
pub struct Refused {
    pub status: u16,
    pub body: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "status {}: {}", self.status, self.body.chars().take(300).collect::<String>())
    }
}

impl std::error::Error for Refused {}

/// Where our router's administration is, and what it asks for.
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) url: String,
    authorization: Option<HeaderValue>,
}

impl Admin {
    pub fn new(url: &str, authorization: Option<HeaderValue>) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), authorization }
    }

    pub(crate) fn http(&self, patience: Duration) -> anyhow::Result<Http> {
        Ok(Http { authorization: self.authorization.clone(), ..Http::new(patience)? })
    }
}

impl From<&str> for Admin {
    /// One that asks for nothing.
    fn from(url: &str) -> Self {
        Self::new(url, None)
    }
}

impl From<&String> for Admin {
    fn from(url: &String) -> Self {
        Self::new(url, None)
    }
}

/// Asks for small things that are answered whole.
#[derive(Clone, Debug)]
pub struct Http {
    connections: Connections,
    patience: Duration,
    /// Shown with every question.
    authorization: Option<HeaderValue>,
}

impl Http {
    pub fn new(patience: Duration) -> anyhow::Result<Self> {
        Ok(Self { connections: connections(patience)?, patience, authorization: None })
    }

    pub async fn get(&self, url: &str, most_bytes: usize) -> anyhow::Result<Bytes> {
        self.ask(Method::GET, url, Bytes::new(), most_bytes).await
    }

    pub async fn post(&self, url: &str, json: &serde_json::Value) -> anyhow::Result<Bytes> {
        self.ask(Method::POST, url, json.to_string().into(), 1 << 20).await
    }

    async fn ask(&self, method: Method, url: &str, body: Bytes, most_bytes: usize) -> anyhow::Result<Bytes> {
        let json = HeaderValue::from_static("application/json");
        let request = Request::builder().method(method).uri(url).header(CONTENT_TYPE, json);
        let mut request = request.body(Full::new(body)).with_context(|| url.to_owned())?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        let asked = async {
            let response = self.connections.request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), most_bytes).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
            if status.is_success() {
                Ok(body)
            } else {
                let body = String::from_utf8_lossy(&body).into_owned();
                Err(anyhow::Error::new(Refused { status: status.as_u16(), body }))
            }
        };
        let late = || format!("no answer within {:?}", self.patience);
        let answered = tokio::time::timeout(self.patience, asked).await.with_context(late);
        answered.and_then(|answered| answered).with_context(|| url.to_owned())
    }
}
