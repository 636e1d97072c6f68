//! Secrets that are kept in files. What is wrong with one is said without it.

use std::path::Path;

use hyper::header::HeaderValue;

/// Longer ones are nobody's.
pub const LONGEST: usize = 512;

/// The one secret a file has, without the end of its line.
pub fn secret_in(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    let secret = text.trim();
    let fits = (1..=LONGEST).contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic());
    if !fits {
        return Err(format!(
            "{shown}: expected one line with a secret of 1 to {LONGEST} printable characters"
        ));
    }
    Ok(secret.to_owned())
}

/// A file's secret as it is sent to engines.
pub fn bearer_in(path: &Path) -> Result<HeaderValue, String> {
    let secret = secret_in(path)?;
    let mut value = HeaderValue::from_str(&format!("Bearer {secret}"))
        .map_err(|_| format!("{}: expected a secret that fits into a header", path.display()))?;
    value.set_sensitive(true);
    Ok(value)
}
