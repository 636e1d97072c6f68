//! Where settings come from, laid over each other.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use kvlane_engine_adapters::nats::is_seed;
use toml::{Table, Value};

use super::mode::{EventPlane, KvPolicy, LogFormat, Mode, WorkerScheme};
use super::worker_spec::WorkerSpec;
use super::{KNOBS, Knob};

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(String),
    Env(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => f.write_str(path),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: `{key}` is {value}, expected {expected} (default {default})")]
    Value { origin: Origin, key: String, value: String, expected: String, default: &'static str },
    #[error("{origin}: there is no setting `{key}`{meant}")]
    Unknown { origin: Origin, key: String, meant: String },
    #[error("{path}: {error}")]
    File { path: String, error: String },
    #[error("{origin}: {text:?} is no setting, expected room.name=value")]
    Set { origin: Origin, text: String },
    #[error(
        "environment {one} is {a:?} and {other} is {b:?}: they are the same setting, expected one of them"
    )]
    Contradiction { one: String, a: String, other: String, b: String },
}

/// What was said, not yet looked at.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Setting (`room.name`), the flag it was given by, and its values: several for lists.
    pub flags: Vec<(String, String, Vec<String>)>,
    /// `room.name=value`, by `--set`.
    pub set: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The file's name and text.
    pub file: Option<(String, String)>,
}

impl Sources {
    /// The file named by `--config`, and this process's environment.
    pub fn environment() -> BTreeMap<String, String> {
        // Anything that is not UTF-8 is none of ours.
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }
}

/// Every setting with its value and origin.
#[derive(Clone, Debug)]
pub struct Settings {
    values: BTreeMap<String, (Value, Origin)>,
}

impl Settings {
    pub(super) fn merge(sources: &Sources) -> Result<Self, ConfigError> {
        let defaults = KNOBS.iter().map(|knob| (knob.key(), (default(knob), Origin::Default)));
        let mut settings = Self { values: defaults.collect() };
        if let Some((path, text)) = &sources.file {
            settings.lay_file(path, text)?;
        }
        for knob in KNOBS {
            settings.lay_env(knob, &sources.env)?;
        }
        for (key, flag, values) in &sources.flags {
            settings.lay_text(key, values, Origin::Flag(format!("--{flag}")))?;
        }
        // Said several times, a list has all of it; anything else is as it was said last.
        let mut set: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let origin = Origin::Flag("--set".to_owned());
        for text in &sources.set {
            let Some((key, value)) = text.split_once('=') else {
                return Err(ConfigError::Set { origin, text: text.clone() });
            };
            set.entry(key.trim()).or_default().push(value.trim().to_owned());
        }
        for (key, values) in set {
            settings.lay_text(key, &values, origin.clone())?;
        }
        Ok(settings)
    }

    fn lay_file(&mut self, path: &str, text: &str) -> Result<(), ConfigError> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| ConfigError::File {
            path: path.to_owned(),
            error: error.to_string(),
        })?;
        let origin = Origin::File(path.to_owned());
        for (room, settings) in table {
            let Value::Table(settings) = settings else {
                return Err(unknown(&room, origin));
            };
            for (name, value) in settings {
                let key = format!("{room}.{name}");
                match self.values.get_mut(&key) {
                    Some(known) => *known = (value, origin.clone()),
                    None => return Err(unknown(&key, origin)),
                }
            }
        }
        Ok(())
    }

    /// The setting's own variable, or one of its other names; not two that contradict each other.
    fn lay_env(&mut self, knob: &Knob, env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        let names = std::iter::once(knob.own_env()).chain(knob.env.iter().map(|name| (*name).to_owned()));
        // Kubernetes sets variables of its own for every service, and one may be called like a setting.
        let injected = |name: &str, value: &str| {
            name.ends_with("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://"))
        };
        let said: Vec<(String, &String)> = names
            .filter_map(|name| Some((name.clone(), env.get(&name)?)))
            .filter(|(name, value)| !injected(name, value))
            .collect();
        let Some((name, value)) = said.first() else { return Ok(()) };
        // Filters for logs are read by many programs, and ours wins over the common one.
        if knob.room != "log"
            && let Some((other, different)) = said.iter().find(|(_, other)| other != value)
        {
            return Err(ConfigError::Contradiction {
                one: name.clone(),
                a: masked(value),
                other: other.clone(),
                b: masked(different),
            });
        }
        self.lay_text(&knob.key(), std::slice::from_ref(value), Origin::Env(name.clone()))
    }

    /// A value given as text has the form its default has.
    fn lay_text(&mut self, key: &str, texts: &[String], origin: Origin) -> Result<(), ConfigError> {
        let Some(knob) = KNOBS.iter().find(|knob| knob.key() == key) else {
            return Err(unknown(key, origin));
        };
        let text = texts.last().map_or("", |text| text.trim());
        let parsed = match default(knob) {
            Value::Integer(_) => text.parse().map(Value::Integer).map_err(|_| "a whole number"),
            Value::Float(_) => text.parse().map(Value::Float).map_err(|_| "a number"),
            Value::Boolean(_) => match text.to_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Ok(Value::Boolean(true)),
                "false" | "0" | "no" | "off" => Ok(Value::Boolean(false)),
                _ => Err("true or false"),
            },
            // Several may stand in one text, apart by spaces.
            Value::Array(_) => {
                let words = texts.iter().flat_map(|text| text.split_whitespace());
                Ok(Value::Array(words.map(Value::from).collect()))
            }
            _ => Ok(Value::from(text)),
        };
        let value = parsed.map_err(|expected| {
            let (key, value, origin) = (key.to_owned(), format!("{text:?}"), origin.clone());
            ConfigError::Value { origin, key, value, expected: expected.to_owned(), default: knob.default }
        })?;
        self.values.insert(key.to_owned(), (value, origin));
        Ok(())
    }

    pub(super) fn get<T: FromValue>(&self, room: &str, name: &str) -> Result<T, ConfigError> {
        let read = self.values.get(&format!("{room}.{name}")).map(|(value, _)| T::from_value(value));
        match read {
            Some(Ok(value)) => Ok(value),
            Some(Err(expected)) => Err(self.refuse(room, name, &expected)),
            None => Err(unknown(&format!("{room}.{name}"), Origin::Default)),
        }
    }

    /// An error about a setting's value.
    pub(super) fn refuse(&self, room: &str, name: &str, expected: &str) -> ConfigError {
        let key = format!("{room}.{name}");
        let (value, origin) = self.values.get(&key).map_or_else(
            || (String::new(), Origin::Default),
            |(value, origin)| match value {
                Value::String(text) => (format!("{:?}", masked(text)), origin.clone()),
                value => (value.to_string(), origin.clone()),
            },
        );
        let default = KNOBS.iter().find(|knob| knob.key() == key).map_or("", |knob| knob.default);
        ConfigError::Value { origin, key, value, expected: expected.to_owned(), default }
    }

    /// Every setting in the order they are declared: its knob, its value, where that came from.
    pub fn all(&self) -> impl Iterator<Item = (&'static Knob, &Value, &Origin)> {
        KNOBS.iter().filter_map(|knob| {
            let (value, origin) = self.values.get(&knob.key())?;
            Some((knob, value, origin))
        })
    }
}

/// A value as it may be shown: without what stands between a URL's scheme and its host, and without seeds.
pub fn without_passwords(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => masked(text).into(),
        Value::Array(items) => items.iter().map(without_passwords).collect(),
        other => serde_json::to_value(other).unwrap_or_default(),
    }
}

fn masked(text: &str) -> String {
    if is_seed(text) {
        return "***".to_owned();
    }
    // There may be several, apart by commas, and a scheme may be left out.
    let shown = |url: &str| {
        let from = url.find("://").map_or(0, |at| at + 3);
        let authority = url[from..].find(['/', '?']).map_or(url.len(), |end| from + end);
        match url[from..authority].rfind('@') {
            Some(at) => format!("{}***{}", &url[..from], &url[from + at..]),
            None => url.to_owned(),
        }
    };
    text.split(',').map(shown).collect::<Vec<_>>().join(",")
}

fn default(knob: &Knob) -> Value {
    // The defaults are ours, and a test reads them all.
    knob.default.parse::<Value>().unwrap_or_else(|_| Value::from(knob.default))
}

fn unknown(key: &str, origin: Origin) -> ConfigError {
    let rooms = KNOBS.iter().map(|knob| knob.room.to_owned());
    let known = KNOBS.iter().map(Knob::key).chain(rooms);
    let near = known
        .map(|known| (strsim::jaro_winkler(&known, key), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.8);
    let meant = near.map_or_else(
        || "; `kvlane config --defaults` shows all there are".to_owned(),
        |(_, known)| format!(", did you mean `{known}`?"),
    );
    ConfigError::Unknown { origin, key: key.to_owned(), meant }
}

/// What a setting's type makes of its value; an error says what would be right.
pub(super) trait FromValue: Sized {
    fn from_value(value: &Value) -> Result<Self, String>;
}

macro_rules! whole_number {
    ($($type:ty),+) => {$(
        impl FromValue for $type {
            fn from_value(value: &Value) -> Result<Self, String> {
                let number = value.as_integer().and_then(|number| Self::try_from(number).ok());
                number.ok_or_else(|| format!("a whole number from 0 to {}", Self::MAX))
            }
        }
    )+};
}
whole_number!(u16, u32, u64, usize);

macro_rules! parsed {
    ($($type:ty = $expected:expr),+ $(,)?) => {$(
        impl FromValue for $type {
            fn from_value(value: &Value) -> Result<Self, String> {
                let expected = |_| -> String { $expected.to_string() };
                value.as_str().unwrap_or_default().parse().map_err(expected)
            }
        }
    )+};
}
parsed!(IpAddr = "an IP address");

macro_rules! word {
    ($($type:ty),+) => {$(
        impl FromValue for $type {
            fn from_value(value: &Value) -> Result<Self, String> {
                value.as_str().unwrap_or_default().parse()
            }
        }
    )+};
}
word!(Mode, KvPolicy, EventPlane, LogFormat, WorkerScheme);

impl FromValue for f64 {
    fn from_value(value: &Value) -> Result<Self, String> {
        let number = value.as_float().or_else(|| value.as_integer().map(|number| number as Self));
        number.ok_or_else(|| "a number".to_owned())
    }
}

/// An empty text is none.
impl FromValue for Option<f64> {
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) => text.parse().map(Some).map_err(|_| "a number".to_owned()),
            value => f64::from_value(value).map(Some),
        }
    }
}

impl FromValue for Option<bool> {
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) => match text.to_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Ok(Some(true)),
                "false" | "0" | "no" | "off" => Ok(Some(false)),
                _ => Err("true or false".to_owned()),
            },
            value => bool::from_value(value).map(Some),
        }
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| "true or false".to_owned())
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Result<Self, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| "a text".to_owned())
    }
}

/// An empty text is none.
impl FromValue for Option<String> {
    fn from_value(value: &Value) -> Result<Self, String> {
        String::from_value(value).map(|text| (!text.is_empty()).then_some(text))
    }
}

impl FromValue for Option<PathBuf> {
    fn from_value(value: &Value) -> Result<Self, String> {
        Option::<String>::from_value(value).map(|path| path.map(PathBuf::from))
    }
}

impl FromValue for Vec<String> {
    fn from_value(value: &Value) -> Result<Self, String> {
        let texts = value.as_array().ok_or("a list of texts")?;
        texts
            .iter()
            .map(|text| text.as_str().map(str::to_owned).ok_or_else(|| "a list of texts".to_owned()))
            .collect()
    }
}

impl FromValue for Vec<usize> {
    fn from_value(value: &Value) -> Result<Self, String> {
        let expected = || "a list of numbers".to_owned();
        let number = |value: &Value| match value {
            Value::String(text) => text.parse().map_err(|_| expected()),
            value => usize::from_value(value).map_err(|_| expected()),
        };
        value.as_array().ok_or_else(expected)?.iter().map(number).collect()
    }
}

impl FromValue for [f64; 3] {
    fn from_value(value: &Value) -> Result<Self, String> {
        let expected = || "three numbers".to_owned();
        let numbers = value.as_array().ok_or_else(expected)?;
        let number = |value: &Value| match value {
            Value::String(text) => text.parse().map_err(|_| expected()),
            value => f64::from_value(value).map_err(|_| expected()),
        };
        let numbers: Vec<f64> = numbers.iter().map(number).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| expected())
    }
}

impl FromValue for Vec<WorkerSpec> {
    fn from_value(value: &Value) -> Result<Self, String> {
        Vec::<String>::from_value(value)?.iter().map(|text| WorkerSpec::parse(text)).collect()
    }
}
