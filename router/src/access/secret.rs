//! Secrets: how they are made, known and read. None of them is ever shown.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use kvlane_engine_adapters::secret::{LONGEST, secret_in};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// How keys that are made here begin, so that scanners for leaked secrets can find them.
const PREFIX: &str = "kvl_";

/// SHA-256 of a secret. A key made here has 256 random bits, so nobody finds it by trying, and no slow hash is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; SHA256_OUTPUT_LEN]);

impl Digest {
    pub fn of(secret: &[u8]) -> Self {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, secret).as_ref());
        Self(bytes)
    }

    /// 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(***)")
    }
}

/// A new key.
pub fn new_key() -> Result<String, &'static str> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the system gives no random numbers")?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// What a request shows: `Authorization: Bearer`, or `x-api-key` or `api-key` as other clients say it.
pub(super) fn shown_secret(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, secret) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| secret.trim_ascii())
    });
    let named = |name: &str| headers.get(name).map(|value| value.as_bytes().trim_ascii());
    let shown = bearer.or_else(|| named("x-api-key")).or_else(|| named("api-key"))?;
    (!shown.is_empty() && shown.len() <= LONGEST).then_some(shown)
}

/// Headers that may carry a secret of a client's.
pub const CREDENTIALS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// Before the SHA-256 of a secret, which would look like a secret itself.
const HASHED: &str = "sha256:";

/// A file's secret as it is known by: the file has it, or `sha256:` and its SHA-256.
pub(super) fn digest_in(path: &Path) -> Result<Digest, String> {
    let secret = secret_in(path)?;
    let Some(hashed) = secret.strip_prefix(HASHED) else { return Ok(Digest::of(secret.as_bytes())) };
    let wrong = || format!("{}: expected 64 hexadecimal digits behind `{HASHED}`", path.display());
    Digest::parse(hashed).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use kvlane_engine_adapters::secret::bearer_in;

    use super::*;

    #[test]
    fn keys_are_long_and_never_the_same() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert_eq!((one.len(), one.starts_with("kvl_")), (47, true));
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)), "{one}");
    }

    #[test]
    fn digests_are_sha256_and_are_not_shown() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&digest.hex().to_uppercase()), Some(digest));
        assert_eq!(format!("{digest:?}"), "Digest(***)");
        let accented = format!("{}\u{e9}", "a".repeat(62));
        for wrong in ["", "abc", &"g".repeat(64), &"a".repeat(63), &"+1".repeat(32), &accented] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_is_shown_in_any_of_three_ways() {
        let of = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            let pairs = pairs.iter();
            pairs
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect()
        };
        for (headers, expected) in [
            (of(&[("authorization", "Bearer k")]), Some("k")),
            (of(&[("authorization", "bearer  k ")]), Some("k")),
            (of(&[("x-api-key", "k")]), Some("k")),
            (of(&[("api-key", "k")]), Some("k")),
            (of(&[("authorization", "Basic k"), ("x-api-key", "other")]), Some("other")),
            (of(&[("authorization", "Bearer ")]), None),
            (of(&[("authorization", "Bearer")]), None),
            (of(&[("authorization", "")]), None),
            (of(&[]), None),
        ] {
            assert_eq!(shown_secret(&headers), expected.map(str::as_bytes), "{headers:?}");
        }
        let long = HeaderMap::from_iter([(
            HeaderName::from_static("api-key"),
            HeaderValue::from_str(&"k".repeat(LONGEST + 1)).unwrap(),
        )]);
        assert_eq!(shown_secret(&long), None);
    }

    #[test]
    fn files_have_one_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "s3cret\n").unwrap();
        assert_eq!(digest_in(&path).unwrap(), Digest::of(b"s3cret"));
        let header = bearer_in(&path).unwrap();
        assert_eq!(
            (header.to_str().unwrap(), format!("{header:?}").as_str()),
            ("Bearer s3cret", "Sensitive")
        );
        let hex = Digest::of(b"s3cret").hex();
        std::fs::write(&path, format!("sha256:{hex}")).unwrap();
        assert_eq!(digest_in(&path).unwrap(), Digest::of(b"s3cret"));
        // Random digits are a token like any other.
        std::fs::write(&path, &hex).unwrap();
        assert_eq!(digest_in(&path).unwrap(), Digest::of(hex.as_bytes()));
        std::fs::write(&path, "sha256:s3cret").unwrap();
        let error = digest_in(&path).unwrap_err();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("s3cret"), "{error}");
        for wrong in ["", " \n", "two words", "two\nlines"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(digest_in(&path).unwrap_err().contains("expected one line"), "{wrong:?}");
        }
        assert!(digest_in(&dir.path().join("none")).is_err());
    }
}
