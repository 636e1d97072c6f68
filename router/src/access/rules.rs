//! What the keys' file says of each key.
//!
//! Errors name what was wrong and what would be right, but never a value: somebody may have put a key there.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use toml::{Table, Value};

use super::limit::MOST;
use super::secret::Digest;
use crate::scheduling::Priority;

/// One entry of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub name: String,
    pub digest: Digest,
    pub requests_per_minute: Option<NonZeroU32>,
    pub tokens_per_minute: Option<NonZeroU32>,
    pub concurrent_requests: Option<NonZeroU32>,
    /// Names with `*` for anything; none for every model.
    pub models: Option<Vec<String>>,
    pub cache_salt: Option<String>,
    /// The most urgent its clients may be.
    pub priority: Option<Priority>,
    /// The day it is no good any more, as written, and when that begins in seconds since 1970.
    pub expires: Option<(String, u64)>,
}

impl Rules {
    pub fn allows(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.iter().any(|pattern| matches(pattern, model)))
    }

    pub fn expired(&self, now: u64) -> bool {
        self.expires.as_ref().is_some_and(|(_, end)| now >= *end)
    }
}

const FIELDS: [&str; 9] = [
    "name",
    "sha256",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
    "models",
    "cache_salt",
    "priority",
    "expires",
];
/// Patterns one key may have.
const MOST_MODELS: usize = 256;
const LONGEST_NAME: usize = 64;
const HASHED: &str = "the SHA-256 of the key in 64 hexadecimal digits, which `kvlane key hash` makes of it; the key itself has no \
     place in this file";

/// The keys of a file's text.
pub fn read_keys(text: &str, most: usize) -> Result<Vec<Rules>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line} is not TOML, expected [[keys]] with name = '…' and sha256 = '…'")
    })?;
    if table.keys().any(|field| field != "keys") {
        return Err("there is more than [[keys]], expected nothing else".to_owned());
    }
    let entries = match table.get("keys") {
        None => &Vec::new(),
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err("`keys` is not a list of tables, expected [[keys]]".to_owned()),
    };
    if entries.len() > most {
        let count = entries.len();
        return Err(format!("there are {count} keys, expected at most {most} (access.max_keys)"));
    }
    let (mut keys, mut names, mut digests) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (n, entry) in entries.iter().enumerate() {
        let key = entry.as_table().ok_or_else(|| "a table".to_owned()).and_then(entry_of);
        let name = entry.get("name").and_then(Value::as_str).filter(|name| is_name(name));
        let which = name.map_or_else(|| format!("key {}", n + 1), |name| format!("key {name}"));
        let key = key.map_err(|expected| format!("{which}: expected {expected}"))?;
        if !names.insert(key.name.clone()) {
            return Err(format!("{which}: expected a name that no other key has"));
        }
        if !digests.insert(key.digest.hex()) {
            return Err(format!("{which}: expected a `sha256` that no other key has"));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// An entry, or what was expected of it.
fn entry_of(entry: &Table) -> Result<Rules, String> {
    if entry.keys().any(|field| !FIELDS.contains(&field.as_str())) {
        let plain = ["key", "api_key", "secret", "token", "value"];
        if entry.keys().any(|field| plain.contains(&field.as_str())) {
            return Err(format!("`sha256`: {HASHED}"));
        }
        return Err(format!("no fields but {}", FIELDS.join(", ")));
    }
    let text = |field: &str| match entry.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("`{field}` to be a text")),
    };
    let count = |field: &str| match entry.get(field) {
        None => Ok(None),
        Some(value) => {
            let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
            let number = number.filter(|number| *number <= MOST).and_then(NonZeroU32::new);
            number.map(Some).ok_or_else(|| format!("`{field}` to be a whole number from 1 to {MOST}"))
        }
    };
    let word = |field: &str, text: Option<&str>| match text {
        Some(text) if !is_name(text) => {
            Err(format!("`{field}` of 1 to {LONGEST_NAME} letters, digits, dots, dashes and underscores"))
        }
        text => Ok(text.map(str::to_owned)),
    };
    let name = word("name", text("name")?)?.ok_or("a `name`")?;
    let digest = text("sha256")?.and_then(Digest::parse).ok_or_else(|| format!("`sha256` to be {HASHED}"))?;
    let models = match entry.get("models") {
        None => None,
        Some(Value::Array(models)) if models.len() <= MOST_MODELS => {
            let names = models.iter().map(|model| model.as_str().map(str::to_owned));
            Some(names.collect::<Option<Vec<_>>>().ok_or("`models` to be a list of texts")?)
        }
        Some(_) => return Err(format!("`models` to be a list of at most {MOST_MODELS} texts")),
    };
    let cache_salt = word("cache_salt", text("cache_salt")?)?;
    if cache_salt.as_deref().is_some_and(|salt| Digest::parse(salt).is_some()) {
        // Engines' events have digests of media where a salt would be.
        return Err("a `cache_salt` that is not 64 hexadecimal digits".to_owned());
    }
    let priority = match text("priority")? {
        None => None,
        Some(word) => Some(Priority::parse(word).ok_or("`priority` to be high, normal or low")?),
    };
    let expires = match text("expires")? {
        None => None,
        Some(day) => Some((
            day.to_owned(),
            start_of(day).ok_or("`expires` to be a day such as '2027-01-01', the first it is no good")?,
        )),
    };
    Ok(Rules {
        name,
        digest,
        requests_per_minute: count("requests_per_minute")?,
        tokens_per_minute: count("tokens_per_minute")?,
        concurrent_requests: count("concurrent_requests")?,
        models,
        cache_salt,
        priority,
        expires,
    })
}

/// Fit for logs, labels and salts.
fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// When a day begins in UTC, in seconds since 1970.
fn start_of(day: &str) -> Option<u64> {
    let bytes = day.as_bytes();
    let shaped = bytes.len() == 10
        && bytes.iter().enumerate().all(|(n, byte)| match n {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let number = |from: usize, to: usize| day.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let long = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = *long.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    if !shaped || year < 1970 || !(1..=days).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(|year| if leap(year) { 366 } else { 365 }).sum();
    let months: u64 = long.iter().take(month as usize - 1).sum();
    Some((years + months + day - 1) * 24 * 60 * 60)
}

/// Whether a text is as the pattern says, `*` standing for anything.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    // The earliest place for each piece leaves most for those that follow.
    for piece in pieces {
        let Some(at) = text.find(piece) else { return false };
        text = &text[at + piece.len()..];
    }
    text.len() >= last.len() && text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn one(more: &str) -> Result<Vec<Rules>, String> {
        read_keys(&format!("[[keys]]\nname = 'team-a'\nsha256 = '{DIGEST}'\n{more}"), 10)
    }

    #[test]
    fn an_entry_says_what_its_key_may() {
        let keys = one("requests_per_minute = 600\ntokens_per_minute = 2000000\nconcurrent_requests = 50\n\
             models = ['llama-*', 'qwen']\ncache_salt = 'a'\npriority = 'normal'\nexpires = '2027-01-01'\n")
        .unwrap();
        let key = &keys[0];
        assert_eq!((key.name.as_str(), key.digest), ("team-a", Digest::of(b"abc")));
        assert_eq!(key.tokens_per_minute.map(NonZeroU32::get), Some(2_000_000));
        assert_eq!((key.cache_salt.as_deref(), key.priority), (Some("a"), Some(Priority::Normal)));
        assert!(
            key.allows("llama-3") && key.allows("qwen") && !key.allows("qwen3") && !key.allows("a-llama-3")
        );
        let end = key.expires.as_ref().unwrap().1;
        assert_eq!(end, 1_798_761_600);
        assert!(!key.expired(end - 1) && key.expired(end));
        let plain = &one("").unwrap()[0];
        assert!(plain.allows("anything") && !plain.expired(u64::MAX));
        assert_eq!(read_keys("", 10).unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_value_is_repeated() {
        let key = "kvl_VerySecretIndeed";
        for (text, says) in [
            (format!("[[keys]]\nname = 'a'\nsha256 = '{key}'"), "key a: expected `sha256` to be the SHA-256"),
            (format!("[[keys]]\nname = 'a'\nkey = '{key}'"), "key a: expected `sha256`: the SHA-256"),
            (format!("[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\ncolour = '{key}'"), "no fields but name"),
            (format!("[[keys]]\nname = '{key} x'\nsha256 = '{DIGEST}'"), "key 1: expected `name` of 1 to 64"),
            (format!("[[keys]]\nsha256 = '{DIGEST}'"), "key 1: expected a `name`"),
            (format!("[[keys]]\nname = \"{key}\nsha256 = 3"), "line 2 is not TOML"),
            (format!("{key} = 3"), "more than [[keys]]"),
            ("keys = 3".to_owned(), "expected [[keys]]"),
            ("keys = [3]".to_owned(), "key 1: expected a table"),
        ] {
            let error = read_keys(&text, 10).unwrap_err();
            assert!(error.contains(says), "{error}\n  lacks: {says}");
            assert!(!error.contains("VerySecret"), "{error}");
        }
        for (more, says) in [
            ("requests_per_minute = 0", "`requests_per_minute` to be a whole number from 1"),
            ("tokens_per_minute = -1", "`tokens_per_minute` to be"),
            ("tokens_per_minute = 2000000000", "`tokens_per_minute` to be"),
            ("concurrent_requests = 'many'", "`concurrent_requests` to be"),
            ("models = 'a'", "`models` to be a list"),
            ("models = [1]", "`models` to be a list"),
            ("cache_salt = 'a/b'", "`cache_salt` of 1 to 64 letters"),
            ("cache_salt = ''", "`cache_salt` of 1 to 64 letters"),
            (&format!("cache_salt = '{DIGEST}'"), "not 64 hexadecimal"),
            ("priority = 'urgent'", "`priority` to be high, normal or low"),
            ("expires = '2027-02-29'", "`expires` to be a day"),
            ("expires = '2027-1-01'", "`expires` to be a day"),
            ("expires = 2027-01-01", "`expires` to be a text"),
            (&format!("[[keys]]\nname = 'team-a'\nsha256 = '{}'", "0".repeat(64)), "a name that no other"),
            (
                &format!("[[keys]]\nname = 'b'\nsha256 = '{DIGEST}'"),
                "key b: expected a `sha256` that no other",
            ),
        ] {
            let error = one(more).unwrap_err();
            assert!(error.contains(says), "{error}\n  lacks: {says}");
        }
        let text = format!("[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\n");
        assert!(read_keys(&text, 0).unwrap_err().contains("at most 0 (access.max_keys)"));
    }

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a*", "ab", true),
            ("a*", "ba", false),
            ("*b", "ab", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*bc*c", "abc", false),
            ("ab*ba", "aba", false),
            ("a**b", "ab", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn days_are_counted_from_1970() {
        for (day, start) in [
            ("1970-01-01", Some(0)),
            ("1970-03-01", Some(59 * 86400)),
            ("2000-02-29", Some(951_782_400)),
            ("2100-02-29", None),
            ("1969-12-31", None),
            ("2024-13-01", None),
            ("2024-00-01", None),
            ("2024-01-00", None),
            ("+024-01-01", None),
        ] {
            assert_eq!(start_of(day), start, "{day}");
        }
    }
}
