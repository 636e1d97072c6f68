//! Connections to whoever a URL names, plain or with TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

use super::TlsError;
use super::client::{ClientTls, Protocol};

/// Without TLS it is the socket itself, and costs no more than that.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect")]
    Tcp(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("TLS handshake failed")]
    Tls(#[source] io::Error),
    #[error("TLS handshake took longer than {0:?}")]
    Late(Duration),
    #[error(transparent)]
    Setup(#[from] TlsError),
    #[error("{0:?} is no name that a certificate could be for")]
    Name(String),
    #[error("the other side does not speak HTTP/2 over TLS")]
    NoHttp2,
}

/// Connects to URLs, plain or with TLS as their scheme says. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connector {
    tcp: HttpConnector,
    tls: Arc<ClientTls>,
    protocol: Protocol,
    /// How long a handshake may take.
    patience: Duration,
}

impl Connector {
    pub fn new(mut tcp: HttpConnector, tls: Arc<ClientTls>, protocol: Protocol, patience: Duration) -> Self {
        tcp.enforce_http(false);
        Self { tcp, tls, protocol, patience }
    }

    pub async fn connect(mut self, uri: Uri) -> Result<Stream, ConnectError> {
        let secured = uri.scheme_str() == Some("https");
        let authority = uri.authority().cloned();
        let stream = self.tcp.call(uri).await.map_err(|error| ConnectError::Tcp(error.into()))?.into_inner();
        let Some(authority) = authority.filter(|_| secured) else { return Ok(Stream::Plain(stream)) };
        let name = self.tls.name(authority.as_str(), authority.host());
        let name = name.ok_or_else(|| ConnectError::Name(authority.host().to_owned()))?;
        let handshake = TlsConnector::from(self.tls.config(self.protocol)?).connect(name, stream);
        let agreed = tokio::time::timeout(self.patience, handshake).await;
        let stream = agreed.map_err(|_| ConnectError::Late(self.patience))?.map_err(ConnectError::Tls)?;
        if self.protocol == Protocol::Http2 && !speaks_http2(&stream) {
            return Err(ConnectError::NoHttp2);
        }
        Ok(Stream::Tls(Box::new(stream)))
    }
}

fn speaks_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(uri).await.map(TokioIo::new) })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(stream) => stream.connected(),
            Self::Tls(stream) if speaks_http2(stream) => stream.get_ref().0.connected().negotiated_h2(),
            Self::Tls(stream) => stream.get_ref().0.connected(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
