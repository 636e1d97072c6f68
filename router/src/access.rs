//! Who may ask for what, and how much: keys, their limits, and who is turned away.
//!
//! Keys come from a file that is read again when it changes. Without one, everything is open. A key is known by its
//! SHA-256 and spoken of by its name; what it has used outlives a change of the file. A [`Pass`] is a request that was
//! let in: it has one of its key's places until it is dropped, and what the request came to is charged then.

mod guard;
mod limit;
mod rules;
mod secret;
mod token;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use kvlane_engine_adapters::process::since_1970;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use self::guard::{Site, from_elsewhere, own_host};
use self::limit::{Left, PerMinute};
pub(crate) use self::rules::matches;
pub use self::rules::{Rules, read_keys};
use self::secret::shown_secret;
pub use self::secret::{CREDENTIALS, Digest, new_key};
pub use self::token::AdminToken;
use crate::config::AccessSettings;
use crate::error::RouterError;
use crate::metrics::{KeyMetrics, Metrics, Outcome};
use crate::openai::Imposed;

/// What a key may have only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    Requests,
    Tokens,
    Concurrent,
}

impl LimitKind {
    pub const ALL: [Self; 3] = [Self::Requests, Self::Tokens, Self::Concurrent];

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Concurrent => "concurrent",
        }
    }

    /// As it is called in the file.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_minute",
            Self::Tokens => "tokens_per_minute",
            Self::Concurrent => "concurrent_requests",
        }
    }
}

/// A key and what it has used.
#[derive(Debug)]
pub struct Key {
    pub rules: Rules,
    imposed: Arc<Imposed>,
    requests: Option<Arc<PerMinute>>,
    tokens: Option<Arc<PerMinute>>,
    running: Arc<AtomicUsize>,
    metrics: Arc<KeyMetrics>,
}

/// A key whose places are all taken is told to come back after this long.
const PLACE_SOON: Duration = Duration::from_secs(1);

impl Key {
    pub fn name(&self) -> &str {
        &self.rules.name
    }

    /// What it makes of its requests.
    pub fn imposed(&self) -> Arc<Imposed> {
        self.imposed.clone()
    }

    /// Lets a request in, before anything of its body is read.
    pub fn enter(self: &Arc<Self>) -> Result<Pass, RouterError> {
        let most = self.rules.concurrent_requests.map_or(usize::MAX, |most| most.get() as usize);
        let taken = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
            (running < most).then(|| running + 1)
        });
        if taken.is_err() {
            return Err(self.over(LimitKind::Concurrent, most as u32, PLACE_SOON));
        }
        // From here on the place is given back by whatever happens.
        let mut pass = Pass { key: self.clone(), prompt: 0, charged: 0, settled: true };
        if let Some(tokens) = &self.tokens {
            tokens.any().map_err(|after| self.over(LimitKind::Tokens, tokens.most(), after))?;
        }
        if let Some(requests) = &self.requests {
            requests.take(1).map_err(|after| self.over(LimitKind::Requests, requests.most(), after))?;
        }
        pass.settled = false;
        Ok(pass)
    }

    fn over(&self, limit: LimitKind, most: u32, after: Duration) -> RouterError {
        self.metrics.refused(limit);
        RouterError::OverLimit { limit, most, after }
    }

    /// How the limits stand, in the headers that OpenAI's clients know.
    pub fn tell_limits(&self, headers: &mut HeaderMap) {
        let mut tell = |names: [&'static str; 3], limit: &Option<Arc<PerMinute>>| {
            let Some(Left { most, remaining, full_in }) = limit.as_ref().map(|limit| limit.left()) else {
                return;
            };
            let [limit, left, reset] = names.map(HeaderName::from_static);
            headers.insert(limit, most.into());
            headers.insert(left, remaining.into());
            let ms = full_in.as_millis();
            let text = if ms < 1000 { format!("{ms}ms") } else { format!("{}s", ms.div_ceil(1000)) };
            if let Ok(text) = HeaderValue::from_str(&text) {
                headers.insert(reset, text);
            }
        };
        let requests =
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
        tell(requests, &self.requests);
        let tokens = ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];
        tell(tokens, &self.tokens);
    }

    /// For operators. The digest stays out of it.
    fn shown(&self) -> Value {
        let rules = &self.rules;
        let remaining = |limit: &Option<Arc<PerMinute>>| limit.as_ref().map(|limit| limit.left().remaining);
        json!({
            "name": rules.name,
            "limits": {
                "requests_per_minute": rules.requests_per_minute,
                "tokens_per_minute": rules.tokens_per_minute,
                "concurrent_requests": rules.concurrent_requests,
            },
            "remaining": {
                "requests": remaining(&self.requests),
                "tokens": remaining(&self.tokens),
            },
            "running": self.running.load(Ordering::Relaxed),
            "used": self.metrics.used(),
            "models": rules.models,
            "cache_salt": rules.cache_salt,
            "priority": rules.priority.map(|priority| priority.name()),
            "expires": rules.expires.as_ref().map(|(day, _)| day),
            "expired": rules.expired(since_1970().as_secs()),
        })
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Pass {
    key: Arc<Key>,
    /// Tokens the prompt has as far as is known here, and how many were taken for it.
    prompt: u64,
    charged: u64,
    /// Nothing is left to be counted when it is dropped.
    settled: bool,
}

impl Pass {
    pub fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// The prompt has so many tokens, as far as is known here.
    pub fn take_prompt(&mut self, tokens: usize) -> Result<(), RouterError> {
        self.prompt = tokens as u64;
        let Some(limit) = &self.key.tokens else { return Ok(()) };
        limit.take(tokens).map_err(|after| self.key.over(LimitKind::Tokens, limit.most(), after))?;
        self.charged = (tokens as u64).min(limit.most().into());
        Ok(())
    }

    /// The request is over, and came to so many tokens: those of its prompt if the engine said.
    pub fn settle(mut self, outcome: Outcome, prompt: Option<u64>, answer: u64) {
        self.settled = true;
        let prompt = prompt.unwrap_or(self.prompt);
        self.key.metrics.ended(outcome, prompt, answer);
        let Some(limit) = &self.key.tokens else { return };
        let came_to = prompt.saturating_add(answer);
        if came_to >= self.charged {
            limit.charge(came_to - self.charged);
        } else {
            limit.give_back(self.charged - came_to);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.key.running.fetch_sub(1, Ordering::Relaxed);
        if !self.settled {
            // Refused before it was anybody's work.
            self.key.metrics.ended(Outcome::Error("refused"), 0, 0);
            if let Some(limit) = &self.key.tokens {
                limit.give_back(self.charged);
            }
        }
    }
}

/// All keys there are.
#[derive(Debug, Default)]
struct Ring {
    by_digest: HashMap<Digest, Arc<Key>>,
    by_name: BTreeMap<String, Arc<Key>>,
}

impl Ring {
    /// These keys, with what was used of those that were there before.
    fn made_of(rules: Vec<Rules>, before: &Self, metrics: &Metrics) -> Self {
        let mut ring = Self::default();
        for rules in rules {
            let known = before.by_name.get(&rules.name);
            let kept = |most: Option<NonZeroU32>, before: Option<&Arc<PerMinute>>| {
                let most = most?;
                let same = before.filter(|limit| limit.most() == most.get());
                Some(same.cloned().unwrap_or_else(|| Arc::new(PerMinute::new(most))))
            };
            let imposed = Imposed { salt: rules.cache_salt.clone(), ceiling: rules.priority };
            let key = Arc::new(Key {
                imposed: Arc::new(imposed),
                requests: kept(rules.requests_per_minute, known.and_then(|key| key.requests.as_ref())),
                tokens: kept(rules.tokens_per_minute, known.and_then(|key| key.tokens.as_ref())),
                running: known.map(|key| key.running.clone()).unwrap_or_default(),
                metrics: known.map_or_else(|| metrics.key(&rules.name), |key| key.metrics.clone()),
                rules,
            });
            ring.by_digest.insert(key.rules.digest, key.clone());
            ring.by_name.insert(key.rules.name.clone(), key);
        }
        ring
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Access {
    /// None when everything is open.
    file: Option<PathBuf>,
    max_keys: usize,
    open_metrics: bool,
    ring: ArcSwap<Ring>,
    metrics: Arc<Metrics>,
}

/// What everybody may ask.
const OPEN: [&str; 3] = ["/health", "/live", "/ready"];

impl Access {
    /// Reads the keys; a file that cannot be used stops the start.
    pub fn open(settings: &AccessSettings, metrics: Arc<Metrics>) -> Result<Self, String> {
        let access = Self {
            file: settings.keys_file.clone(),
            max_keys: settings.max_keys,
            open_metrics: settings.open_metrics,
            ring: ArcSwap::default(),
            metrics,
        };
        if let Some(path) = &access.file {
            access.lay(keys_in(path, access.max_keys)?);
        }
        Ok(access)
    }

    /// Whether keys are asked for.
    pub fn on(&self) -> bool {
        self.file.is_some()
    }

    /// Whose request this is. Nobody's where none is asked for.
    pub fn key(&self, path: &str, headers: &HeaderMap) -> Result<Option<Arc<Key>>, RouterError> {
        if !self.on() {
            return Ok(None);
        }
        let found = match shown_secret(headers) {
            None => Err("there is no API key, expected one as `Authorization: Bearer KEY`"),
            Some(secret) => {
                let key = self.ring.load().by_digest.get(&Digest::of(secret)).cloned();
                match key {
                    None => Err("the API key is not known here, expected another one"),
                    Some(key) if key.rules.expired(since_1970().as_secs()) => {
                        Err("the API key has expired, expected another one")
                    }
                    Some(key) => Ok(key),
                }
            }
        };
        let open = OPEN.contains(&path) || (path == "/metrics" && self.open_metrics);
        match found {
            Ok(key) => Ok(Some(key)),
            Err(_) if open => Ok(None),
            Err(message) => {
                self.metrics.unauthorized();
                Err(RouterError::Unauthorized { message })
            }
        }
    }

    /// For operators, who speak of keys by their names.
    pub fn named(&self, name: &str) -> Option<Arc<Key>> {
        self.ring.load().by_name.get(name).cloned()
    }

    pub fn names(&self) -> Vec<String> {
        self.ring.load().by_name.keys().cloned().collect()
    }

    /// `/admin/keys`.
    pub fn shown(&self) -> Value {
        let ring = self.ring.load();
        json!({ "on": self.on(), "keys": ring.by_name.values().map(|key| key.shown()).collect::<Vec<_>>() })
    }

    /// The keys are these now.
    fn lay(&self, rules: Vec<Rules>) {
        let before = self.ring.load_full();
        let ring = Ring::made_of(rules, &before, &self.metrics);
        let gone: Vec<&Arc<Key>> =
            before.by_name.values().filter(|key| !ring.by_name.contains_key(key.name())).collect();
        tracing::info!(keys = ring.by_name.len(), gone = gone.len(), "API keys read");
        for key in &gone {
            self.metrics.forget_key(&key.metrics);
        }
        self.ring.store(Arc::new(ring));
    }

    /// Follows the file. One that cannot be used changes nothing, and what is found counts when it is found twice:
    /// somebody may be in the middle of writing, and half a file is fewer keys.
    pub async fn follow(self: Arc<Self>, every: Duration, stop: CancellationToken) {
        let Some(path) = self.file.clone() else { return };
        let (mut found, mut heeded): (Option<Found>, Option<Found>) = (None, None);
        while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            let (path, most) = (path.clone(), self.max_keys);
            let Ok(read) = tokio::task::spawn_blocking(move || keys_in(&path, most)).await else { continue };
            if found.as_ref() != Some(&read) {
                found = Some(read);
                continue;
            }
            if heeded == found {
                continue;
            }
            match &read {
                Ok(rules) if self.has(rules) => {}
                Ok(rules) => self.lay(rules.clone()),
                Err(error) => {
                    tracing::error!(error, "the keys' file cannot be used; nothing is changed");
                }
            }
            heeded = Some(read);
        }
    }

    fn has(&self, rules: &[Rules]) -> bool {
        let ring = self.ring.load();
        rules.len() == ring.by_name.len()
            && rules.iter().all(|rules| ring.by_name.get(&rules.name).is_some_and(|key| key.rules == *rules))
    }
}

/// What a look at the file found.
type Found = Result<Vec<Rules>, String>;

/// Larger files are no keys' files.
const LARGEST_FILE: u64 = 64 << 20;

fn keys_in(path: &Path, most: usize) -> Found {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?.len();
    if size > LARGEST_FILE {
        return Err(format!("{shown}: the file has {size} bytes, expected at most {LARGEST_FILE}"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    read_keys(&text, most).map_err(|error| format!("{shown}: {error}"))
}
