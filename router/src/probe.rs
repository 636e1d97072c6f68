//! Asks a server whether it is well: for containers, which have neither a shell nor curl.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hyper::Uri;
use kvlane_engine_adapters::tls::{NamedFile, VERSIONS, provider};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
};

use crate::config::{Config, Tls};

const PATIENCE: Duration = Duration::from_secs(3);
/// Of an answer as much as its status line.
const MOST_BYTES: u64 = 4096;

/// Where a router with these settings says that it lives.
pub fn own_address(config: &Config) -> anyhow::Result<String> {
    let (tls, admin) = (&config.tls, &config.admin);
    if tls.client_ca.is_some() {
        // There is no client's certificate in the settings that could be shown.
        ensure!(
            admin.port != 0 && !tls.admin,
            "clients have to show a certificate (`tls.client_ca`) and there is none for this probe, expected a plain \
             admin listener (`admin.port`, without `tls.admin`) or a URL to ask"
        );
        return Ok(format!("http://{}:{}/live", host(admin.host), admin.port));
    }
    let scheme = if tls.cert.is_some() { "https" } else { "http" };
    Ok(format!("{scheme}://{}:{}/live", host(config.server.host), config.server.port))
}

fn host(address: IpAddr) -> String {
    match address {
        // All addresses are no address to connect to.
        IpAddr::V4(host) if host.is_unspecified() => "127.0.0.1".to_owned(),
        IpAddr::V6(host) if host.is_unspecified() => "[::1]".to_owned(),
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}

/// Fails unless the address answers with a 2xx. Over TLS nobody is believed but whoever has the settings' own certificate.
pub fn probe(address: &str, tls: &Tls) -> anyhow::Result<()> {
    let uri: Option<Uri> = address.parse().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https"))).with_context(|| {
        format!("address is {address:?}, expected one such as http://127.0.0.1:8000/live")
    })?;
    let secured = uri.scheme_str() == Some("https");
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(if secured { 443 } else { 80 });
    let bare = host.trim_matches(['[', ']']);
    let found = (bare, port).to_socket_addrs().with_context(|| address.to_owned())?;
    let mut last = None;
    let stream = found.into_iter().find_map(|to| {
        TcpStream::connect_timeout(&to, PATIENCE).inspect_err(|error| last = Some(error.to_string())).ok()
    });
    let mut stream = stream.with_context(|| {
        format!("{address}: nobody listens: {}", last.as_deref().unwrap_or("the name has no address"))
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let question = format!("GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n");
    let (answer, read) = if secured {
        let name = ServerName::try_from(bare.to_owned()).with_context(|| address.to_owned())?;
        let mut stream = StreamOwned::new(ClientConnection::new(pinned(address, tls)?, name)?, stream);
        ask(&mut stream, &question, address)?
    } else {
        ask(&mut stream, &question, address)?
    };
    let status = answer.split_whitespace().nth(1).and_then(|status| status.parse::<u16>().ok());
    let status = status.with_context(|| match read {
        Ok(_) => format!("{address}: the answer is no HTTP"),
        Err(error) => format!("{address}: no answer: {error}"),
    })?;
    ensure!((200..300).contains(&status), "{address}: status {status}, expected 200 to 299");
    Ok(())
}

fn ask(
    stream: &mut (impl Read + Write),
    question: &str,
    address: &str,
) -> anyhow::Result<(String, std::io::Result<usize>)> {
    stream.write_all(question.as_bytes()).with_context(|| address.to_owned())?;
    let mut answer = Vec::new();
    let read = stream.take(MOST_BYTES).read_to_end(&mut answer);
    Ok((String::from_utf8_lossy(&answer).into_owned(), read))
}

/// Believes whoever has the certificate that is in the settings, and nobody else.
fn pinned(address: &str, tls: &Tls) -> anyhow::Result<Arc<ClientConfig>> {
    let Some(file) = NamedFile::of("tls.cert", tls.cert.as_ref()) else {
        bail!(
            "{address}: no certificate to expect there, expected `tls.cert` (--tls-cert-path) to be given with https"
        );
    };
    let leaf = file.certificates()?.into_iter().next().context("a file without a certificate")?;
    let provider = provider();
    let pinned = Arc::new(Pinned { leaf, provider: provider.clone() });
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(VERSIONS)?;
    Ok(Arc::new(builder.dangerous().with_custom_certificate_verifier(pinned).with_no_client_auth()))
}

#[derive(Debug)]
struct Pinned {
    leaf: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *shown == self.leaf {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::cli::config_of;

    #[test]
    fn who_answers_is_well_and_who_does_not_is_not() {
        let tls = Config::defaults().unwrap().tls;
        let probe = |address: &str| probe(address, &tls);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/live", listener.local_addr().unwrap());
        let answers = std::thread::spawn(move || {
            for status in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut part = [0; 512];
                    let read = stream.read(&mut part).unwrap();
                    asked.extend_from_slice(&part[..read]);
                }
                assert!(asked.starts_with(b"GET /live HTTP/1.1\r\n"));
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        probe(&address).unwrap();
        assert!(probe(&address).unwrap_err().to_string().contains("status 503, expected 200 to 299"));
        answers.join().unwrap();
        assert!(probe(&address).unwrap_err().to_string().contains("nobody listens"));
        assert!(probe("localhost:1").unwrap_err().to_string().contains("expected one such as"));
    }

    #[test]
    fn a_router_is_asked_where_it_can_be() {
        let files = ["--tls-cert-path", "c.pem", "--tls-key-path", "k.pem"];
        let check = |more: &[&str], expected: &str| {
            let (config, _) = config_of(&[&["--port", "1", "--admin-port", "2"], more].concat()).unwrap();
            let found = own_address(&config).unwrap_or_else(|error| error.to_string());
            assert!(found.contains(expected), "{found}");
        };
        check(&[], "http://127.0.0.1:1/live");
        check(&files, "https://127.0.0.1:1/live");
        let mutual = [&files[..], &["--set", "tls.client_ca=ca.pem"]].concat();
        check(&mutual, "http://127.0.0.1:2/live");
        check(&[&mutual[..], &["--set", "tls.admin=true"]].concat(), "expected a plain admin listener");
        check(&[&mutual[..], &["--set", "admin.port=0"]].concat(), "expected a plain admin listener");
    }
}
