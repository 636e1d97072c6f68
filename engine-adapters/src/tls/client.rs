//! TLS towards workers: whom to trust, what to show them, and who is expected where.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

use super::{KeyPair, NamedFile, TlsError, VERSIONS, Watched, not_after, provider};

/// Where trust and identity come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Whom to trust; the system's roots when none.
    pub ca: Option<NamedFile>,
    /// What to show to whoever asks.
    pub own: Option<KeyPair>,
}

/// What is spoken over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// What is made of the files.
#[derive(Debug)]
pub struct Configs {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    /// When the own certificate ends, in seconds since 1970.
    pub not_after: Option<i64>,
}

/// See the [module](self). Written by whoever knows of workers, read by every connection.
#[derive(Debug)]
pub struct ClientTls {
    /// None when there are no files.
    watched: Option<Arc<Watched<Configs>>>,
    /// Made when it is first needed: where nobody speaks TLS, no roots need to be there.
    system: OnceLock<Result<Configs, String>>,
    /// Who is expected at an address, where that is not the name in its URL. As many as there are workers.
    names: RwLock<HashMap<String, ServerName<'static>>>,
}

impl ClientTls {
    pub fn load(files: ClientFiles) -> Result<Arc<Self>, TlsError> {
        let own = files.own.as_ref().map(|own| [&own.certificate, &own.key]);
        let paths: Vec<PathBuf> =
            files.ca.iter().chain(own.into_iter().flatten()).map(|file| file.path.clone()).collect();
        let watched = match paths.is_empty() {
            true => None,
            false => Some(Arc::new(Watched::new(paths, move || configs(&files))?)),
        };
        Ok(Arc::new(Self { watched, system: OnceLock::new(), names: RwLock::default() }))
    }

    /// Nothing but the system's roots.
    pub fn system() -> Arc<Self> {
        Arc::new(Self { watched: None, system: OnceLock::new(), names: RwLock::default() })
    }

    /// Looks at the files every now and then, if there are any; `changed` is told of what is new, and of what there is.
    pub fn follow<F: Fn(&Configs) + Send + 'static>(
        &self,
        every: Duration,
        stop: CancellationToken,
        changed: F,
    ) -> Option<impl Future<Output = ()> + Send + use<F>> {
        let watched = self.watched.clone()?;
        changed(&watched.get());
        Some(watched.follow("trust and certificate towards workers", every, stop, changed))
    }

    /// Whoever answers at `authority` has to have a certificate for this name.
    pub fn expect(&self, authority: &str, name: &str) {
        // What is no name was refused where it was said.
        if let Ok(name) = ServerName::try_from(name.to_owned()) {
            self.names.write().insert(authority.to_owned(), name);
        }
    }

    pub fn forget(&self, authority: &str) {
        self.names.write().remove(authority);
    }

    /// Who is expected at an address.
    pub(super) fn name(&self, authority: &str, host: &str) -> Option<ServerName<'static>> {
        let known = self.names.read().get(authority).cloned();
        known.or_else(|| ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok())
    }

    pub(super) fn config(&self, protocol: Protocol) -> Result<Arc<ClientConfig>, TlsError> {
        let of = |configs: &Configs| match protocol {
            Protocol::Http1 => configs.http1.clone(),
            Protocol::Http2 => configs.http2.clone(),
        };
        if let Some(watched) = &self.watched {
            return Ok(of(&watched.get()));
        }
        let made =
            self.system.get_or_init(|| configs(&ClientFiles::default()).map_err(|error| error.to_string()));
        made.as_ref().map(of).map_err(|error| TlsError::NoRoots(error.clone()))
    }
}

impl ClientFiles {
    /// Fails when one of them is of no use.
    pub fn check(&self) -> Result<(), TlsError> {
        self.ca.as_ref().map(NamedFile::roots).transpose()?;
        self.own.as_ref().map(KeyPair::load).transpose()?;
        Ok(())
    }
}

fn configs(files: &ClientFiles) -> Result<Configs, TlsError> {
    let roots = Arc::new(match &files.ca {
        Some(ca) => ca.roots()?,
        None => system_roots()?,
    });
    let own = files.own.as_ref().map(KeyPair::load).transpose()?.map(Arc::new);
    let not_after = own.as_ref().and_then(|own| own.cert.first()).and_then(|leaf| not_after(leaf));
    let made = |protocol: &[u8]| made(roots.clone(), own.as_ref(), protocol).map(Arc::new);
    Ok(Configs { http1: made(b"http/1.1")?, http2: made(b"h2")?, not_after })
}

fn made(
    roots: Arc<RootCertStore>,
    own: Option<&Arc<CertifiedKey>>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS)?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let shown: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(own.clone()));
            builder.with_client_cert_resolver(shown)
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(TlsError::NoRoots(if errors.is_empty() {
            "none found".to_owned()
        } else {
            errors.join(", ")
        }));
    }
    Ok(roots)
}
