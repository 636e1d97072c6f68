//! Getting into a NATS server: TLS, who we are, and what is said when it does not let us in.
//!
//! Secrets stay out of URLs that others write down, and out of our own words. Files are read again with every connection,
//! so that what is rotated is used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Auth, AuthError, Client, ConnectOptions, Event, Server, ServerAddr};
use nkeys::KeyPair;
use tokio::sync::watch;

use super::NatsError;
use crate::tls::{ClientFiles, NamedFile};

/// How to get in. What a URL says of user and password is used unless there is an identity.
#[derive(Clone, Debug, Default)]
pub struct NatsAccess {
    /// With any of them TLS is insisted on.
    pub tls: ClientFiles,
    pub identity: Option<NatsIdentity>,
}

/// Who we are.
#[derive(Clone)]
pub enum NatsIdentity {
    /// A file with a JWT and the seed it is for.
    Credentials(NamedFile),
    /// A file with a user's seed.
    NkeyFile(NamedFile),
    /// The seed itself.
    Nkey {
        setting: &'static str,
        seed: String,
    },
    /// A file with a token.
    Token(NamedFile),
    Password {
        user: String,
        password: String,
    },
}

impl fmt::Debug for NatsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(file) | Self::NkeyFile(file) | Self::Token(file) => file.fmt(f),
            Self::Nkey { setting, .. } => write!(f, "`{setting}`"),
            Self::Password { user, .. } => write!(f, "user {user:?}"),
        }
    }
}

/// Whether a text is an nkey's seed, and not the name of a file.
pub fn is_seed(text: &str) -> bool {
    KeyPair::from_seed(text.trim()).is_ok()
}

impl NatsIdentity {
    /// A seed, or a file with one.
    pub fn nkey(setting: &'static str, text: &str) -> Self {
        match is_seed(text) {
            true => Self::Nkey { setting, seed: text.trim().to_owned() },
            false => Self::NkeyFile(NamedFile::new(setting, text)),
        }
    }

    /// What the server is told; it has to be signed for `nonce`.
    fn auth(&self, nonce: &[u8]) -> Result<Auth, String> {
        let text = |file: &NamedFile| {
            let bytes = file.read().map_err(|error| error.to_string())?;
            String::from_utf8(bytes).map_err(|_| file.wrong("a text").to_string())
        };
        let mut auth = Auth::new();
        match self {
            Self::Credentials(file) => {
                let text = text(file)?;
                let (jwt, seed) = sections(&text).ok_or_else(|| {
                    file.wrong("a user's JWT and seed, as `nsc generate creds` writes them").to_string()
                })?;
                let pair =
                    KeyPair::from_seed(seed).map_err(|_| file.wrong("the seed of a user").to_string())?;
                auth.jwt = Some(jwt.to_owned());
                auth.signature = Some(sign(&pair, nonce)?);
            }
            Self::NkeyFile(file) => {
                let wrong = |_| file.wrong("the seed of a user's nkey (SU…)").to_string();
                signed(&mut auth, &KeyPair::from_seed(text(file)?.trim()).map_err(wrong)?, nonce)?;
            }
            Self::Nkey { setting, seed } => {
                let wrong = |_| format!("`{setting}`: expected the seed of a user's nkey (SU…)");
                signed(&mut auth, &KeyPair::from_seed(seed).map_err(wrong)?, nonce)?;
            }
            Self::Token(file) => match text(file)?.trim() {
                "" => return Err(file.wrong("a token").to_string()),
                token => auth.token = Some(token.to_owned()),
            },
            Self::Password { user, password } if password.is_empty() => auth.token = Some(user.clone()),
            Self::Password { user, password } => {
                (auth.username, auth.password) = (Some(user.clone()), Some(password.clone()));
            }
        }
        Ok(auth)
    }
}

fn signed(auth: &mut Auth, pair: &KeyPair, nonce: &[u8]) -> Result<(), String> {
    auth.nkey = Some(pair.public_key());
    auth.signature = Some(sign(pair, nonce)?);
    Ok(())
}

fn sign(pair: &KeyPair, nonce: &[u8]) -> Result<Vec<u8>, String> {
    pair.sign(nonce).map_err(|_| "what the server asked for cannot be signed".to_owned())
}

/// JWT and seed: each the line between two that begin and end with dashes.
fn sections(text: &str) -> Option<(&str, &str)> {
    let dashed = |line: &&str| line.starts_with("---") && line.ends_with("---");
    let mut lines = text.lines().map(str::trim);
    let mut next = || {
        lines.find(dashed)?;
        let content = lines.next().filter(|line| !line.is_empty())?;
        lines.next().filter(|line| dashed(line)).map(|_| content)
    };
    Some((next()?, next()?))
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The server, without user and password, and what it said.
    pub why: String,
    /// It answered, and did not let us in: waiting will not help.
    pub refused: bool,
}

/// A connection that comes back whenever it was away.
#[derive(Clone, Debug)]
pub struct NatsConnection {
    pub client: Client,
    /// Counts connections: when it grows, messages may have been lost.
    pub connected: watch::Receiver<u64>,
    /// What is wrong while there is none.
    pub trouble: watch::Receiver<Option<Trouble>>,
}

impl NatsConnection {
    /// Whether the server never let us in.
    pub fn is_refused(&self) -> bool {
        *self.connected.borrow() == 0 && self.trouble.borrow().as_ref().is_some_and(|trouble| trouble.refused)
    }
}

impl NatsAccess {
    /// Connects, and waits for a server that is not there yet. What is wrong with files or URL is an error; a server that
    /// does not let us in is tried again, and why it did not is said whenever that is something new.
    pub async fn connect(&self, url: &str, name: &str) -> Result<NatsConnection, NatsError> {
        let wrong = |error: &dyn fmt::Display| NatsError::new("cannot connect", error);
        self.tls.check().map_err(|error| wrong(&error))?;
        let (servers, in_url) = without_identity(url).map_err(|error| wrong(&error))?;
        let identity = self.identity.clone().or(in_url).map(Arc::new);
        if let Some(identity) = &identity {
            identity.auth(&[]).map_err(|error| wrong(&error))?;
        }
        let (count, connected) = watch::channel(0_u64);
        let (said, trouble) = watch::channel(None);
        let said = Arc::new(said);
        let mut options = match identity {
            None => ConnectOptions::new(),
            Some(identity) => ConnectOptions::with_auth_callback(move |nonce| {
                std::future::ready(identity.auth(&nonce).map_err(AuthError::new))
            }),
        };
        options = options
            .name(name)
            .retry_on_initial_connect()
            .reconnect_delay_callback(|attempt| Duration::from_millis((50 * attempt as u64).min(2000)))
            .reconnect_to_server_callback({
                // Asked before every attempt, and told how the ones before it went.
                let said = said.clone();
                move |servers, _| {
                    tell(&servers, &said);
                    std::future::ready(None)
                }
            })
            .event_callback(move |event| {
                noted(&event, &count, &said);
                std::future::ready(())
            });
        if let Some(ca) = &self.tls.ca {
            options = options.add_root_certificates(ca.path.clone());
        }
        if let Some(own) = &self.tls.own {
            options = options.add_client_certificate(own.certificate.path.clone(), own.key.path.clone());
        }
        options = options.require_tls(self.tls != ClientFiles::default());
        let client = options.connect(servers).await.map_err(|error| wrong(&error))?;
        Ok(NatsConnection { client, connected, trouble })
    }
}

/// Says why there is no connection, when that is something new.
fn tell(servers: &[Server], said: &watch::Sender<Option<Trouble>>) {
    let failed = || servers.iter().filter_map(|server| Some((&server.addr, server.last_error.as_ref()?)));
    if failed().next().is_none() {
        return;
    }
    let why: Vec<String> =
        failed().map(|(addr, error)| format!("{}:{}: {error}", addr.host(), addr.port())).collect();
    let why = why.join("; ");
    // Errors come as texts; a server's name is none of them.
    let words = ["authorization", "authentication", "certificate", "TLS", "tls", "alert"];
    let refused = failed().any(|(addr, error)| {
        let error = error.to_string().replace(addr.host(), "");
        words.iter().any(|word| error.contains(word))
    });
    let trouble = Trouble { why, refused };
    said.send_if_modified(|known| {
        let new = known.as_ref() != Some(&trouble);
        if new && refused {
            tracing::error!(error = trouble.why, "NATS does not let us in, trying again");
        } else if new {
            tracing::warn!(error = trouble.why, "NATS cannot be reached, trying again");
        }
        *known = Some(trouble);
        new
    });
}

fn noted(event: &Event, count: &watch::Sender<u64>, trouble: &watch::Sender<Option<Trouble>>) {
    match event {
        Event::Connected => {
            trouble.send_replace(None);
            count.send_modify(|count| *count += 1);
            tracing::info!("NATS is connected");
        }
        Event::Disconnected => tracing::warn!("NATS is gone, trying again"),
        Event::ServerError(error) => tracing::warn!(%error, "NATS complains"),
        Event::SlowConsumer(_) => {
            tracing::warn!("NATS messages were dropped: they came faster than they were read");
        }
        other => tracing::debug!(%other, "NATS"),
    }
}

/// Servers as they may be written down, and who the URL says we are. Several are apart by commas.
fn without_identity(urls: &str) -> Result<(Vec<ServerAddr>, Option<NatsIdentity>), String> {
    let (mut servers, mut identity) = (Vec::new(), None);
    for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
        let authority = rest.split(['/', '?']).next().unwrap_or(rest);
        let host = match authority.rsplit_once('@') {
            None => authority,
            Some((user, host)) => {
                let (user, password) = user.split_once(':').unwrap_or((user, ""));
                let said = decoded(user).zip(decoded(password));
                let said = said
                    .ok_or_else(|| format!("user and password for {host} are not percent-encoded right"))?;
                if *identity.get_or_insert_with(|| said.clone()) != said {
                    return Err(format!(
                        "user and password for {host} differ from those before, expected the same"
                    ));
                }
                host
            }
        };
        let server = format!("{scheme}://{host}");
        servers.push(server.parse().map_err(|error| format!("{server}: {error}"))?);
    }
    if servers.is_empty() {
        return Err("no server is named, expected nats://HOST:4222 or tls://HOST:4222".to_owned());
    }
    Ok((servers, identity.map(|(user, password)| NatsIdentity::Password { user, password })))
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(part.get(2..)?.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_taken_out_of_urls() {
        let check = |url: &str, servers: &[&str], who: Option<(&str, &str)>| {
            let (found, identity) = without_identity(url).unwrap();
            let found: Vec<String> =
                found.into_iter().map(|server| server.into_inner().to_string()).collect();
            assert_eq!(found, servers, "{url}");
            let identity = identity.map(|identity| match identity {
                NatsIdentity::Password { user, password } => (user, password),
                other => panic!("{other:?}"),
            });
            assert_eq!(identity, who.map(|(user, password)| (user.to_owned(), password.to_owned())), "{url}");
        };
        check("nats://n:4222", &["nats://n:4222"], None);
        check("n", &["nats://n"], None);
        check("tls://me:s%40cr:t%25@n:4222/", &["tls://n:4222"], Some(("me", "s@cr:t%")));
        check("nats://token@[::1]:4222", &["nats://[::1]:4222"], Some(("token", "")));
        check("nats://a:b@n:1, nats://a:b@m:2", &["nats://n:1", "nats://m:2"], Some(("a", "b")));
        for (wrong, says) in [
            ("http://secret:x@n", "invalid scheme"),
            ("", "expected nats://HOST:4222"),
            ("nats://a:secret@n,nats://a:other@m", "for m differ"),
            ("nats://a:secret%@n", "percent-encoded"),
        ] {
            let error = without_identity(wrong).unwrap_err();
            assert!(error.contains(says) && !error.contains("secret"), "{wrong}: {error}");
        }
    }

    #[test]
    fn identities_are_read_and_never_shown() {
        let pair = KeyPair::new_user();
        let seed = pair.seed().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            NamedFile::new("events.nats_creds", dir.path().join(name))
        };
        let jwt = "eyJ0eXAi.eyJqdGki.c2ln";
        let creds = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n**** IMPORTANT ****\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let auth = NatsIdentity::Credentials(file("a.creds", &creds)).auth(b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some(jwt));
        pair.verify(b"nonce", &auth.signature.unwrap()).unwrap();
        let path = file("a.nk", &format!("{seed}\n")).path;
        for given in [seed.as_str(), path.to_str().unwrap()] {
            let identity = NatsIdentity::nkey("events.nats_nkey", given);
            assert!(!format!("{identity:?}").contains(&seed));
            let auth = identity.auth(b"nonce").unwrap();
            assert_eq!(auth.nkey, Some(pair.public_key()));
            pair.verify(b"nonce", &auth.signature.unwrap()).unwrap();
        }
        assert_eq!(NatsIdentity::Token(file("t", "abc\n")).auth(&[]).unwrap().token.as_deref(), Some("abc"));
        for (identity, says) in [
            (NatsIdentity::Credentials(file("b.creds", &seed)), "expected a user's JWT and seed"),
            (NatsIdentity::NkeyFile(file("b.nk", &seed[..20])), "expected the seed of a user's nkey"),
            (
                NatsIdentity::nkey("events.nats_nkey", "/nowhere"),
                "`events.nats_nkey`: /nowhere: No such file",
            ),
            (NatsIdentity::Token(file("u", " ")), "expected a token"),
        ] {
            let error = identity.auth(&[]).err().unwrap();
            assert!(error.contains(says) && !error.contains(&seed[..20]), "{error}");
        }
    }
}
