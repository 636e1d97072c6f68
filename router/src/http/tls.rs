//! TLS as clients meet it: certificate and key from files that may change, and handshakes with an end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::tls::{KeyPair, NamedFile, TlsError, VERSIONS, Watched, not_after, provider};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Tls;
use crate::metrics::{Certificate, Metrics};

/// How every handshake begins.
const HANDSHAKE: u8 = 0x16;
const HTTP2: &[u8] = b"h2";
/// Whoever speaks plain HTTP here can at least read this.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 48\r\n\r\n\
    this port speaks TLS; expected https:// in URLs\n";
/// Of what such a client said, so much is read before it is answered: what is left unread would take the answer along.
const PLAIN_READ: usize = 16 << 10;

/// What is spoken on a listener with TLS. Connections keep what they were accepted with.
#[derive(Debug)]
pub struct ServerTls {
    config: Arc<Watched<Served>>,
    patience: Duration,
    metrics: Arc<Metrics>,
}

/// What is made of the files.
#[derive(Debug)]
struct Served {
    config: Arc<ServerConfig>,
    not_after: Option<i64>,
}

/// The pair in the settings, if there is one.
pub fn server_pair(tls: &Tls) -> Option<KeyPair> {
    let certificate = NamedFile::of("tls.cert", tls.cert.as_ref())?;
    Some(KeyPair { certificate, key: NamedFile::of("tls.key", tls.key.as_ref())? })
}

impl ServerTls {
    /// None when the settings name no certificate.
    pub fn load(settings: &Tls, metrics: Arc<Metrics>) -> Result<Option<Arc<Self>>, TlsError> {
        let Some(pair) = server_pair(settings) else { return Ok(None) };
        let clients = NamedFile::of("tls.client_ca", settings.client_ca.as_ref());
        let files: Vec<PathBuf> = [Some(&pair.certificate), Some(&pair.key), clients.as_ref()]
            .into_iter()
            .flatten()
            .map(|file| file.path.clone())
            .collect();
        let config = Watched::new(files, move || served(&pair, clients.as_ref()))?;
        metrics.certificate_ends(Certificate::Server, config.get().not_after);
        let patience = Duration::from_millis(settings.handshake_ms);
        Ok(Some(Arc::new(Self { config: Arc::new(config), patience, metrics })))
    }

    /// Looks at the files every now and then, until stopped.
    pub fn follow(
        &self,
        every: Duration,
        stop: tokio_util::sync::CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let metrics = self.metrics.clone();
        let changed = move |served: &Served| metrics.certificate_ends(Certificate::Server, served.not_after);
        self.config.clone().follow("server certificate", every, stop, changed)
    }

    /// The connection once both sides agree, and whether HTTP/2 is spoken on it; none when they do not.
    pub async fn accept(&self, stream: TcpStream) -> Option<(TlsStream<TcpStream>, bool)> {
        let agreed = match tokio::time::timeout(self.patience, self.shake_hands(stream)).await {
            Ok(agreed) => agreed,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client took too long")),
        };
        match agreed {
            // Whoever only looks whether the port is open has not failed at anything.
            Ok(None) => None,
            Ok(Some(stream)) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
                Some((stream, http2))
            }
            Err(error) => {
                self.metrics.handshake_failed();
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
        }
    }

    async fn shake_hands(&self, mut stream: TcpStream) -> io::Result<Option<TlsStream<TcpStream>>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Ok(None);
        }
        if first[0] != HANDSHAKE {
            // It may be anything; only what could be a method is answered.
            if first[0].is_ascii_uppercase() {
                let _ = stream.try_read(&mut vec![0; PLAIN_READ]);
                stream.write_all(PLAIN).await?;
                stream.shutdown().await?;
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        TlsAcceptor::from(self.config.get().config.clone()).accept(stream).await.map(Some)
    }
}

fn served(pair: &KeyPair, clients: Option<&NamedFile>) -> Result<Served, TlsError> {
    let provider = provider();
    let certified = pair.load()?;
    let not_after = certified.cert.first().and_then(|leaf| not_after(leaf));
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(VERSIONS)?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(file.roots()?), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| TlsError::Refused {
                setting: file.setting,
                path: file.path.clone(),
                error: error.to_string(),
            })?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(Served { config: Arc::new(config), not_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_answer_is_as_long_as_it_says() {
        let text = std::str::from_utf8(PLAIN).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
