//! TLS from files: what they hold, and what is made of them, made anew when they change.
//!
//! Errors name the setting and the file, and never quote what is in it: one of them is a private key.

mod client;
mod stream;
mod validity;
mod watched;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SupportedProtocolVersion};

pub use self::client::{ClientFiles, ClientTls, Configs, Protocol};
pub use self::stream::{ConnectError, Connector, Stream};
pub use self::validity::not_after;
pub use self::watched::Watched;

/// What is spoken, both ways.
pub const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
/// A file with more than this is no certificate.
const MAX_FILE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("`{setting}`: {}: {error}", path.display())]
    Unreadable { setting: &'static str, path: PathBuf, error: std::io::Error },
    #[error("`{setting}`: {}: expected {expected}", path.display())]
    Content { setting: &'static str, path: PathBuf, expected: &'static str },
    #[error("`{setting}`: {}: {error}", path.display())]
    Refused { setting: &'static str, path: PathBuf, error: String },
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
    #[error("the system has no root certificates: {0}; expected some, or a file of your own")]
    NoRoots(String),
}

/// A file and the setting that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    pub setting: &'static str,
    pub path: PathBuf,
}

impl NamedFile {
    pub fn new(setting: &'static str, path: impl Into<PathBuf>) -> Self {
        Self { setting, path: path.into() }
    }

    /// The same, if there is a path.
    pub fn of(setting: &'static str, path: Option<&PathBuf>) -> Option<Self> {
        path.map(|path| Self::new(setting, path))
    }

    pub(crate) fn wrong(&self, expected: &'static str) -> TlsError {
        TlsError::Content { setting: self.setting, path: self.path.clone(), expected }
    }

    pub(crate) fn refused(&self, error: &dyn std::fmt::Display) -> TlsError {
        TlsError::Refused { setting: self.setting, path: self.path.clone(), error: error.to_string() }
    }

    pub(crate) fn read(&self) -> Result<Vec<u8>, TlsError> {
        read(&self.path).map_err(|error| TlsError::Unreadable {
            setting: self.setting,
            path: self.path.clone(),
            error,
        })
    }

    /// Every certificate in it, in their order.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let wrong = || self.wrong("certificates in PEM (-----BEGIN CERTIFICATE-----)");
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.read()?).collect();
        found.ok().filter(|found| !found.is_empty()).ok_or_else(wrong)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let wrong = |_| self.wrong("a private key in PEM (-----BEGIN PRIVATE KEY-----), not encrypted");
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(wrong)
    }

    /// Whom to trust.
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.refused(&error))?;
        }
        Ok(roots)
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(std::io::Error::other(format!("larger than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

/// A certificate, those that vouch for it, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    pub certificate: NamedFile,
    pub key: NamedFile,
}

impl KeyPair {
    /// Fails when the key belongs to another certificate.
    pub fn load(&self) -> Result<CertifiedKey, TlsError> {
        let chain = self.certificate.certificates()?;
        let belongs = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => self
                .key
                .refused(&format!("this key does not belong to the certificate in {}", self.certificate)),
            // A certificate that cannot be read is found here as well.
            rustls::Error::InvalidCertificate(error) => self.certificate.refused(&error),
            error => self.key.refused(&error),
        };
        CertifiedKey::from_der(chain, self.key.key()?, &provider()).map_err(belongs)
    }
}

impl std::fmt::Display for NamedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ({})", self.setting, self.path.display())
    }
}

/// The cryptography, the same everywhere.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_said_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            NamedFile::new("tls.key", path)
        };
        let (one, other) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        let signed = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&one).unwrap();
        let certificate = NamedFile { setting: "tls.cert", ..file("cert.pem", &signed.pem()) };
        let pair = |key: NamedFile| KeyPair { certificate: certificate.clone(), key };
        pair(file("key.pem", &one.serialize_pem())).load().unwrap();
        let secret = "c2VjcmV0";
        let cut = "-----BEGIN PRIVATE KEY";
        for (key, says) in [
            (
                file("other.pem", &other.serialize_pem()),
                "this key does not belong to the certificate in `tls.cert`",
            ),
            (file("empty.pem", ""), "expected a private key in PEM"),
            (file("cut.pem", &format!("{cut}{secret}\n{secret}\n")), "expected a private key in PEM"),
            (file("odd.pem", &format!("{cut}-----\n{secret}\n-----END PRIVATE KEY-----\n")), "odd.pem"),
            (NamedFile::new("tls.key", dir.path().join("missing.pem")), "missing.pem: No such file"),
            (NamedFile::new("tls.key", "/dev/zero"), "/dev/zero: larger than 1048576 bytes"),
        ] {
            let error = pair(key).load().unwrap_err().to_string();
            assert!(error.contains(says) && error.starts_with("`tls.key`: "), "{error}");
            assert!(!error.contains(secret), "{error}");
        }
        assert!(
            file("none.pem", "x").certificates().unwrap_err().to_string().contains("certificates in PEM")
        );
        assert_eq!(certificate.roots().unwrap().len(), 1);
    }
}
